#include "json_writer.h"

#include <cmath>
#include <cstdio>

#include "utf8.h"

namespace launcher {

void JsonWriter::before_value() {
    if (comma_due_) {
        text_ += ',';
    }
    comma_due_ = true;
}

JsonWriter & JsonWriter::open(char bracket) {
    before_value();
    text_ += bracket;
    comma_due_ = false;
    return *this;
}

JsonWriter & JsonWriter::shut(char bracket) {
    text_ += bracket;
    comma_due_ = true;
    return *this;
}

JsonWriter & JsonWriter::key(std::string_view name) {
    before_value();
    quote(name);
    text_ += ':';
    comma_due_ = false;
    return *this;
}

JsonWriter & JsonWriter::string(std::string_view text) {
    before_value();
    quote(text);
    return *this;
}

void JsonWriter::quote(std::string_view text) {
    text_ += '"';
    while (!text.empty()) {
        const auto byte = static_cast<unsigned char>(text.front());
        const size_t length = utf8_length(text);
        char escape[8];
        if (byte == '"' || byte == '\\') {
            text_ += '\\';
            text_ += text.front();
        } else if (byte == '\n') {
            text_ += "\\n";
        } else if (byte == '\t') {
            text_ += "\\t";
        } else if (byte < 0x20 || byte == 0x7f) {
            std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(byte));
            text_ += escape;
        } else if (length == 0) {
            std::snprintf(escape, sizeof escape, "\\udc%02x", static_cast<unsigned>(byte));
            text_ += escape;
        } else {
            text_.append(text.substr(0, length));
        }
        text.remove_prefix(length == 0 ? 1 : length);
    }
    text_ += '"';
}

JsonWriter & JsonWriter::raw(std::string_view json) {
    before_value();
    text_ += json;
    return *this;
}

JsonWriter & JsonWriter::integer(int64_t value) {
    before_value();
    text_ += std::to_string(value);
    return *this;
}

JsonWriter & JsonWriter::decimal(double value, int digits) {
    if (!std::isfinite(value)) {
        return null();
    }
    before_value();
    char number[352];  // the largest double has 309 digits before the point
    std::snprintf(number, sizeof number, "%.*f", digits, value);
    text_ += number;
    return *this;
}

JsonWriter & JsonWriter::boolean(bool value) {
    before_value();
    text_ += value ? "true" : "false";
    return *this;
}

JsonWriter & JsonWriter::null() {
    before_value();
    text_ += "null";
    return *this;
}

}  // namespace launcher
