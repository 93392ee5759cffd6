// Reading JSON that somebody else wrote: whether it is well-formed, and single members of an object.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace launcher {

// Members of the one object that the text consists of, each value as its JSON text within `text`. Nothing when the
// text is anything else, or not UTF-8. Of members with the same name the last one counts.
std::optional<std::map<std::string, std::string_view>> read_object(std::string_view text);

// The text that a JSON string stands for; nothing when the value is no string.
std::optional<std::string> read_string(std::string_view value);

}  // namespace launcher
