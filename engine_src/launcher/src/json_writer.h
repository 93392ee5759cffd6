// Writes JSON text piece by piece; commas are its business, matching begin and end the caller's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace launcher {

class JsonWriter {
public:
    JsonWriter & begin_object() { return open('{'); }
    JsonWriter & end_object() { return shut('}'); }
    JsonWriter & begin_array() { return open('['); }
    JsonWriter & end_array() { return shut(']'); }
    JsonWriter & key(std::string_view name);

    // Bytes that are not UTF-8 become \udc80..\udcff, which Python's os.fsencode turns back into them.
    JsonWriter & string(std::string_view text);
    JsonWriter & integer(int64_t value);
    // Not-a-number and infinity have no place in JSON: null.
    JsonWriter & decimal(double value, int digits);
    JsonWriter & boolean(bool value);
    JsonWriter & null();
    // One value that is JSON already.
    JsonWriter & raw(std::string_view json);

    // field(name, value) with a null for an empty optional. Decimals are written to the microsecond's digit.
    template <typename T>
    JsonWriter & field(std::string_view name, const T & value) {
        key(name);
        return any(value);
    }

    const std::string & text() const { return text_; }

private:
    template <typename T>
    JsonWriter & any(const std::optional<T> & value) {
        return value ? any(*value) : null();
    }
    template <typename T>
    JsonWriter & any(const T & value) {
        if constexpr (std::is_same_v<T, bool>) {
            return boolean(value);
        } else if constexpr (std::is_integral_v<T>) {
            return integer(static_cast<int64_t>(value));
        } else if constexpr (std::is_floating_point_v<T>) {
            return decimal(value, 6);
        } else {
            return string(value);
        }
    }
    JsonWriter & open(char bracket);
    JsonWriter & shut(char bracket);
    void before_value();
    void quote(std::string_view text);

    std::string text_;
    bool comma_due_ = false;
};

}  // namespace launcher
