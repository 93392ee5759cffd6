// Characters that arrive in pieces.
#include "utf8.h"

#include "check.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

using namespace moe;

namespace {

// By arithmetic instead of by cases: a second opinion on what is well-formed.
bool decodes(const std::string & sequence) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(sequence[i]); };
    const size_t n = sequence.size();
    const unsigned lead_bits[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    const unsigned lead_mark[] = {0, 0x00, 0xC0, 0xE0, 0xF0};
    const char32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (n < 1 || n > 4 || (byte(0) & ~lead_bits[n]) != lead_mark[n]) {
        return false;
    }
    char32_t point = byte(0) & lead_bits[n];
    for (size_t i = 1; i < n; ++i) {
        if ((byte(i) & 0xC0u) != 0x80u) {
            return false;
        }
        point = (point << 6) | (byte(i) & 0x3Fu);
    }
    return point >= least[n] && point <= 0x10FFFF && (point < 0xD800 || point > 0xDFFF);
}

void every_code_point_is_written_and_recognised() {
    for (char32_t point = 0; point <= 0x10FFFF; ++point) {
        if (point >= 0xD800 && point <= 0xDFFF) {
            continue;
        }
        std::string text;
        append_utf8(text, point);
        if (!decodes(text) || utf8_length(text, 0) != text.size()) {
            std::fprintf(stderr, "  U+%X\n", static_cast<unsigned>(point));
            CHECK(false);
        }
    }
}

void every_two_bytes_are_judged_alike() {
    for (unsigned a = 0; a < 256; ++a) {
        for (unsigned b = 0; b < 256; ++b) {
            const std::string text = {static_cast<char>(a), static_cast<char>(b)};
            const size_t expected = decodes(text.substr(0, 1)) ? 1 : decodes(text) ? 2 : 0;
            CHECK(utf8_length(text, 0) == expected);
        }
    }
}

void a_character_is_held_back_until_it_is_whole() {
    const std::string gorilla = "\xF0\x9F\x90\x8A";
    Utf8Cutter cutter;
    CHECK(cutter.take("a\xF0") == "a");
    CHECK(cutter.take("\x9F") == "");
    CHECK(cutter.take("\x90") == "");
    CHECK(cutter.take("\x8Az") == gorilla + "z");
    CHECK(cutter.take("\xC3") == "");
    CHECK(cutter.take("\xBC\xE2\x82") == "\xC3\xBC");
    CHECK(cutter.take_last("") == "\xE2\x82");
    CHECK(cutter.take_last("") == "");
}

void what_can_become_no_character_is_not_held_back() {
    for (const std::string bytes : {"\xFF", "\x80", "\xC0", "\xC1", "\xF5", "\xE0\x80", "\xED\xA0", "\xF0\x8F",
                                    "\xF4\x90", "\xE2("}) {
        CHECK(Utf8Cutter().take(bytes) == bytes);
    }
    for (const std::string bytes : {"\xC2", "\xE0", "\xE0\xA0", "\xED", "\xED\x9F", "\xF0", "\xF0\x90", "\xF4",
                                    "\xF4\x8F", "\xF4\x8F\xBF"}) {
        CHECK(Utf8Cutter().take(bytes).empty());
    }
}

// Whatever the pieces: nothing is lost, nothing is cut.
void pieces_add_up() {
    std::mt19937 random(20261130);
    const std::vector<std::string> parts = {"a",    "\xC3\xBC", "\xE2\x82\xAC", "\xF0\x9F\x90\x8A",
                                            "\x80", "\xF0",     "\xED\xA0"};
    for (int round = 0; round < 2000; ++round) {
        std::string whole;
        for (size_t i = random() % 12; i > 0; --i) {
            whole += parts[random() % parts.size()];
        }
        Utf8Cutter cutter;
        std::string joined;
        for (size_t at = 0; at < whole.size();) {
            const size_t n = 1 + random() % 3;
            const std::string piece = cutter.take(whole.substr(at, n));
            at += n;
            joined += piece;
            // A character of the whole text is never split by the end of a piece.
            size_t i = 0;
            while (i < joined.size()) {
                i += std::max<size_t>(utf8_length(whole, i), 1);
            }
            CHECK(i == joined.size());
        }
        CHECK(joined + cutter.take_last("") == whole);
    }
}

}  // namespace

int main() {
    check::run("every code point is written and recognised", every_code_point_is_written_and_recognised);
    check::run("every two bytes are judged alike", every_two_bytes_are_judged_alike);
    check::run("a character is held back until it is whole", a_character_is_held_back_until_it_is_whole);
    check::run("what can become no character is not held back", what_can_become_no_character_is_not_held_back);
    check::run("pieces add up", pieces_add_up);
    return check::result();
}
