// What is UTF-8 and what is not.
#pragma once

#include <cstddef>
#include <string_view>

namespace launcher {

// Length in bytes of the UTF-8 character at the start of a text that is not empty; 0 when there is none.
size_t utf8_length(std::string_view text);

}  // namespace launcher
