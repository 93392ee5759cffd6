// The little JSON that the engine writes: one object at a time, keys in the order given.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

namespace moe {

// A JSON string literal. Bytes that are not valid UTF-8 become U+FFFD, so that every reader can take the line.
std::string json_string(const std::string & text);

// The shortest decimal that reads back as the same double; null when it is not finite.
std::string json_number(double value);

class JsonObject {
public:
    JsonObject & text(const char * key, const std::string & value) { return raw(key, json_string(value)); }
    JsonObject & boolean(const char * key, bool value) { return raw(key, value ? "true" : "false"); }
    JsonObject & null(const char * key) { return raw(key, "null"); }

    template <class T>
    JsonObject & number(const char * key, T value) {
        static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
        if constexpr (std::is_floating_point_v<T>) {
            return raw(key, json_number(value));
        } else {
            return raw(key, std::to_string(value));
        }
    }

    template <class T>
    JsonObject & number(const char * key, const std::optional<T> & value) {
        return value ? number(key, *value) : null(key);
    }

    JsonObject & text(const char * key, const std::optional<std::string> & value) {
        return value ? text(key, *value) : null(key);
    }

    // `value` is JSON already.
    JsonObject & raw(const char * key, const std::string & value);

    std::string str() const { return "{" + body_ + "}"; }

private:
    std::string body_;
};

}  // namespace moe
