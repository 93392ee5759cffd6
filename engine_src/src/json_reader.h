// Reads the JSON that a client sends: one object a line, of whose values only the simple ones are of interest.
#pragma once

#include <map>
#include <stdexcept>
#include <string>
#include <variant>

namespace moe {

// What is wrong with a text that should be JSON, and at which byte.
class JsonError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

struct JsonNull {};
struct JsonNested {};     // an object or an array: well-formed, not kept
struct JsonLiteral {      // a number as it was written
    std::string text;
};
using JsonValue = std::variant<JsonNull, bool, JsonLiteral, std::string, JsonNested>;
using JsonFields = std::map<std::string, JsonValue>;

// The text must be one object by RFC 8259 and nothing else, in well-formed UTF-8, its keys unique. Strings come back
// as UTF-8, so a surrogate without its pair is an error. Throws JsonError.
JsonFields read_json_object(const std::string & text);

}  // namespace moe
