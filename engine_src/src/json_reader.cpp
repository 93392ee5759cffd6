#include "json_reader.h"

#include "utf8.h"

#include <cstring>
#include <utility>

namespace moe {

namespace {

// Bounds recursion: no request nests at all.
constexpr int max_depth = 32;

class Reader {
public:
    explicit Reader(const std::string & text) : text_(text) {}

    JsonFields document() {
        skip_blanks();
        if (peek() != '{') {
            fail("a JSON object must begin with '{'");
        }
        JsonFields fields = object(0);
        skip_blanks();
        if (!at_end()) {
            fail("nothing may follow the object");
        }
        return fields;
    }

private:
    [[noreturn]] void fail(const std::string & what) const {
        throw JsonError("invalid JSON at byte " + std::to_string(at_) + ": " + what);
    }

    bool at_end() const { return at_ == text_.size(); }
    char peek() const { return at_end() ? '\0' : text_[at_]; }

    bool accept(char c) {
        if (at_end() || text_[at_] != c) {
            return false;
        }
        ++at_;
        return true;
    }

    void skip_blanks() {
        while (!at_end() && std::strchr(" \t\r\n", text_[at_]) != nullptr && text_[at_] != '\0') {
            ++at_;
        }
    }

    JsonFields object(int depth) {
        JsonFields fields;
        ++at_;
        skip_blanks();
        if (accept('}')) {
            return fields;
        }
        do {
            skip_blanks();
            if (peek() != '"') {
                fail("a key in quotes is expected");
            }
            std::string key = string();
            skip_blanks();
            if (!accept(':')) {
                fail("':' is expected after a key");
            }
            JsonValue read = value(depth);
            if (!fields.emplace(std::move(key), std::move(read)).second) {
                fail("this key was given before");
            }
            skip_blanks();
        } while (accept(','));
        if (!accept('}')) {
            fail("',' or '}' is expected");
        }
        return fields;
    }

    void array(int depth) {
        ++at_;
        skip_blanks();
        if (accept(']')) {
            return;
        }
        do {
            value(depth);
            skip_blanks();
        } while (accept(','));
        if (!accept(']')) {
            fail("',' or ']' is expected");
        }
    }

    JsonValue value(int depth) {
        skip_blanks();
        switch (peek()) {
            case '"': return string();
            case '{':
            case '[':
                if (depth == max_depth) {
                    fail("nested more than " + std::to_string(max_depth) + " deep");
                }
                peek() == '{' ? static_cast<void>(object(depth + 1)) : array(depth + 1);
                return JsonNested{};
            case 't': word("true"); return true;
            case 'f': word("false"); return false;
            case 'n': word("null"); return JsonNull{};
            default: return number();
        }
    }

    void word(const char * expected) {
        const size_t length = std::strlen(expected);
        if (text_.compare(at_, length, expected) != 0) {
            fail("a value is expected");
        }
        at_ += length;
    }

    bool digits() {
        const size_t start = at_;
        while (peek() >= '0' && peek() <= '9') {
            ++at_;
        }
        return at_ > start;
    }

    JsonLiteral number() {
        const size_t start = at_;
        accept('-');
        if (!accept('0') && !digits()) {
            fail("a value is expected");
        }
        if (accept('.') && !digits()) {
            fail("a digit is expected after '.'");
        }
        if (accept('e') || accept('E')) {
            if (!accept('+')) {
                accept('-');
            }
            if (!digits()) {
                fail("a digit is expected in the exponent");
            }
        }
        return {text_.substr(start, at_ - start)};
    }

    std::string string() {
        std::string out;
        ++at_;
        while (!accept('"')) {
            if (at_end()) {
                fail("the string does not end");
            }
            if (static_cast<unsigned char>(text_[at_]) < 0x20) {
                fail("a control character in a string must be escaped");
            }
            if (accept('\\')) {
                escape(out);
            } else {
                const size_t length = utf8_length(text_, at_);
                if (length == 0) {
                    fail("not well-formed UTF-8");
                }
                out.append(text_, at_, length);
                at_ += length;
            }
        }
        return out;
    }

    void escape(std::string & out) {
        static const char names[] = "\"\\/bfnrt";
        static const char meant[] = "\"\\/\b\f\n\r\t";
        const char * name = at_end() || peek() == '\0' ? nullptr : std::strchr(names, peek());
        if (name != nullptr) {
            out += meant[name - names];
            ++at_;
        } else if (accept('u')) {
            append_utf8(out, escaped_code_point());
        } else {
            fail("an unknown escape");
        }
    }

    // After "\u": UTF-16, of which a code point above U+FFFF takes two escapes.
    char32_t escaped_code_point() {
        const char32_t first = four_hex_digits();
        if (first < 0xD800 || first > 0xDFFF) {
            return first;
        }
        if (first > 0xDBFF || !accept('\\') || !accept('u')) {
            fail("half of a surrogate pair");
        }
        const char32_t second = four_hex_digits();
        if (second < 0xDC00 || second > 0xDFFF) {
            fail("half of a surrogate pair");
        }
        return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
    }

    char32_t four_hex_digits() {
        static const char alphabet[] = "0123456789abcdefABCDEF";
        char32_t unit = 0;
        for (int i = 0; i < 4; ++i) {
            const char * digit = at_end() || peek() == '\0' ? nullptr : std::strchr(alphabet, peek());
            if (digit == nullptr) {
                fail("four hexadecimal digits are expected after \\u");
            }
            const auto place = static_cast<char32_t>(digit - alphabet);
            unit = unit * 16 + (place < 16 ? place : place - 6);
            ++at_;
        }
        return unit;
    }

    const std::string & text_;
    size_t at_ = 0;
};

}  // namespace

JsonFields read_json_object(const std::string & text) { return Reader(text).document(); }

}  // namespace moe
