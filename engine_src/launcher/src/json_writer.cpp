#include "json_writer.h"

#include <cmath>
#include <cstdio>

namespace launcher {

namespace {

// Length in bytes of the UTF-8 character at the start of the text; 0 when there is none.
size_t utf8_length(std::string_view text) {
    const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
    const unsigned char lead = byte(0);
    size_t length = 0;
    unsigned char low = 0x80;   // bounds of the second byte: they exclude overlong forms,
    unsigned char high = 0xbf;  // surrogates and what is beyond U+10FFFF
    if (lead < 0x80) {
        return 1;
    }
    if (lead >= 0xc2 && lead <= 0xdf) {
        length = 2;
    } else if (lead >= 0xe0 && lead <= 0xef) {
        length = 3;
        low = lead == 0xe0 ? 0xa0 : low;
        high = lead == 0xed ? 0x9f : high;
    } else if (lead >= 0xf0 && lead <= 0xf4) {
        length = 4;
        low = lead == 0xf0 ? 0x90 : low;
        high = lead == 0xf4 ? 0x8f : high;
    } else {
        return 0;
    }
    if (text.size() < length || byte(1) < low || byte(1) > high) {
        return 0;
    }
    for (size_t at = 2; at < length; ++at) {
        if ((byte(at) & 0xc0) != 0x80) {
            return 0;
        }
    }
    return length;
}

}  // namespace

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
