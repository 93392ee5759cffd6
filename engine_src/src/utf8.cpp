#include "utf8.h"

#include <utility>

namespace moe {

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

namespace {

// Where a character begins that the end of the text cuts off; the text's size if none does.
size_t cut_off_at(const std::string & text) {
    for (size_t i = 0; i < text.size();) {
        const size_t length = utf8_length(text, i);
        // The lowest or the highest tail completes every beginning that can be completed.
        for (const char * tail : {"\x80\x80\x80", "\xBF\xBF\xBF"}) {
            const std::string rest = length == 0 && text.size() - i < 4 ? text.substr(i) : "";
            if (!rest.empty() && utf8_length(rest + tail, 0) > rest.size()) {
                return i;
            }
        }
        i += length == 0 ? 1 : length;
    }
    return text.size();
}

}  // namespace

void append_utf8(std::string & text, char32_t code_point) {
    const auto add = [&](char32_t byte) { text += static_cast<char>(byte); };
    const auto tail = [&](int shift) { add(0x80 | ((code_point >> shift) & 0x3F)); };
    if (code_point < 0x80) {
        add(code_point);
    } else if (code_point < 0x800) {
        add(0xC0 | (code_point >> 6));
        tail(0);
    } else if (code_point < 0x10000) {
        add(0xE0 | (code_point >> 12));
        tail(6);
        tail(0);
    } else {
        add(0xF0 | (code_point >> 18));
        tail(12);
        tail(6);
        tail(0);
    }
}

std::string Utf8Cutter::take(const std::string & bytes) {
    std::string text = take_last(bytes);
    const size_t cut = cut_off_at(text);
    held_ = text.substr(cut);
    text.resize(cut);
    return text;
}

std::string Utf8Cutter::take_last(const std::string & bytes) { return std::exchange(held_, "") + bytes; }

}  // namespace moe
