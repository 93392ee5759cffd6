#include "json.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace moe {

namespace {

// Length of the well-formed UTF-8 sequence at `at`, 0 if there is none (overlong forms, surrogates and
// code points above U+10FFFF are not well-formed).
size_t utf8_length(const std::string & text, size_t at) {
    const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
    const auto tail = [&](size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
    const unsigned lead = byte(at);
    const unsigned second = byte(at + 1);
    if (lead < 0x80) {
        return 1;
    }
    if (lead >= 0xC2 && lead <= 0xDF) {
        return tail(at + 1) ? 2 : 0;
    }
    if (lead >= 0xE0 && lead <= 0xEF) {
        const bool bad = (lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F);
        return !bad && tail(at + 1) && tail(at + 2) ? 3 : 0;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        const bool bad = (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F);
        return !bad && tail(at + 1) && tail(at + 2) && tail(at + 3) ? 4 : 0;
    }
    return 0;
}

}  // namespace

std::string json_string(const std::string & text) {
    std::string out = "\"";
    for (size_t i = 0; i < text.size();) {
        const size_t length = utf8_length(text, i);
        if (length == 0) {
            out += "\xEF\xBF\xBD";
            ++i;
            continue;
        }
        const char c = text[i];
        if (length > 1) {
            out.append(text, i, length);
        } else if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (c == '\n') {
            out += "\\n";
        } else if (c == '\t') {
            out += "\\t";
        } else if (c == '\r') {
            out += "\\r";
        } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
            out += escape;
        } else {
            out += c;
        }
        i += length;
    }
    out += '"';
    return out;
}

std::string json_number(double value) {
    if (!std::isfinite(value)) {
        return "null";
    }
    char text[40];
    for (int precision = 6; precision <= 17; ++precision) {
        std::snprintf(text, sizeof text, "%.*g", precision, value);
        if (std::strtod(text, nullptr) == value) {
            break;
        }
    }
    return text;
}

JsonObject & JsonObject::raw(const char * key, const std::string & value) {
    if (!body_.empty()) {
        body_ += ',';
    }
    body_ += json_string(key) + ':' + value;
    return *this;
}

}  // namespace moe
