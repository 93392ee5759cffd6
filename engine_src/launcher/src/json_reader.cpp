#include "json_reader.h"

#include <cstdint>

#include "utf8.h"

namespace launcher {

namespace {

using Members = std::map<std::string, std::string_view>;

// Walks over a text; every method returns false at the first fault and is not to be asked again after it.
class Scanner {
public:
    explicit Scanner(std::string_view text) : text_(text) {}

    bool object(Members * members) {
        return take('{') && list('}', [&] {
                   std::string name;
                   if (!string(&name) || !take(':')) {
                       return false;
                   }
                   skip_space();
                   const size_t begin = at_;
                   if (!value()) {
                       return false;
                   }
                   if (members != nullptr) {
                       (*members)[name] = text_.substr(begin, at_ - begin);
                   }
                   return true;
               });
    }

    bool string(std::string * decoded) {
        if (!take('"')) {
            return false;
        }
        while (at_ < text_.size() && text_[at_] != '"') {
            if (!character(decoded)) {
                return false;
            }
        }
        return take_here('"');
    }

    bool at_end() {
        skip_space();
        return at_ == text_.size();
    }

private:
    static constexpr int deepest = 64;  // of lists within lists, so that no text can exhaust the stack

    bool value() {
        skip_space();
        switch (at_ < text_.size() ? text_[at_] : '\0') {
            case '{': return object(nullptr);
            case '[': return take('[') && list(']', [&] { return value(); });
            case '"': return string(nullptr);
            case 't': return word("true");
            case 'f': return word("false");
            case 'n': return word("null");
            default: return number();
        }
    }

    template <typename Item>
    bool list(char end, Item item) {
        if (take(end)) {
            return true;
        }
        if (++depth_ > deepest) {
            return false;
        }
        do {
            if (!item()) {
                return false;
            }
        } while (take(','));
        --depth_;
        return take(end);
    }

    bool character(std::string * decoded) {
        const auto byte = static_cast<unsigned char>(text_[at_]);
        if (byte == '\\') {
            ++at_;
            return escape(decoded);
        }
        const size_t length = utf8_length(text_.substr(at_));
        if (byte < 0x20 || length == 0) {
            return false;
        }
        if (decoded != nullptr) {
            decoded->append(text_.substr(at_, length));
        }
        at_ += length;
        return true;
    }

    bool escape(std::string * decoded) {
        static constexpr std::string_view letters = "\"\\/bfnrt";
        static constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
        if (take_here('u')) {
            uint32_t code = 0;
            if (!four_digits(code)) {
                return false;
            }
            if (code >= 0xd800 && code < 0xdc00 && text_.substr(at_, 2) == "\\u") {
                at_ += 2;
                uint32_t low = 0;
                if (!four_digits(low) || low < 0xdc00 || low > 0xdfff) {
                    return false;  // half a pair with a stranger
                }
                code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
            }
            if (decoded != nullptr) {
                append_utf8(*decoded, code);
            }
            return true;
        }
        const size_t which = at_ < text_.size() ? letters.find(text_[at_]) : std::string_view::npos;
        if (which == std::string_view::npos) {
            return false;
        }
        ++at_;
        if (decoded != nullptr) {
            *decoded += meanings[which];
        }
        return true;
    }

    bool four_digits(uint32_t & code) {
        static constexpr std::string_view digits = "0123456789abcdef";
        code = 0;
        for (int i = 0; i < 4; ++i, ++at_) {
            const char letter = at_ < text_.size() ? text_[at_] : '\0';
            const size_t digit = digits.find(letter >= 'A' && letter <= 'F' ? static_cast<char>(letter + 32) : letter);
            if (digit == std::string_view::npos) {
                return false;
            }
            code = code * 16 + static_cast<uint32_t>(digit);
        }
        return true;
    }

    // Half a surrogate pair stands for a byte that was no UTF-8 (see JsonWriter), or for itself.
    static void append_utf8(std::string & text, uint32_t code) {
        const auto put = [&](uint32_t byte) { text += static_cast<char>(byte); };
        if (code < 0x80) {
            put(code);
        } else if (code >= 0xdc80 && code <= 0xdcff) {
            put(code - 0xdc00);
        } else if (code < 0x800) {
            put(0xc0 | code >> 6);
            put(0x80 | (code & 0x3f));
        } else if (code < 0x10000) {
            put(0xe0 | code >> 12);
            put(0x80 | (code >> 6 & 0x3f));
            put(0x80 | (code & 0x3f));
        } else {
            put(0xf0 | code >> 18);
            put(0x80 | (code >> 12 & 0x3f));
            put(0x80 | (code >> 6 & 0x3f));
            put(0x80 | (code & 0x3f));
        }
    }

    bool number() {
        take_here('-');
        if (!take_here('0') && !digits()) {
            return false;
        }
        if (take_here('.') && !digits()) {
            return false;
        }
        if (take_here('e') || take_here('E')) {
            take_here('+') || take_here('-');
            return digits();
        }
        return true;
    }

    bool digits() {
        const size_t begin = at_;
        while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
            ++at_;
        }
        return at_ > begin;
    }

    bool word(std::string_view expected) {
        const bool found = text_.substr(at_, expected.size()) == expected;
        at_ += found ? expected.size() : 0;
        return found;
    }

    bool take(char expected) {
        skip_space();
        return take_here(expected);
    }

    bool take_here(char expected) {
        const bool found = at_ < text_.size() && text_[at_] == expected;
        at_ += found ? 1 : 0;
        return found;
    }

    void skip_space() {
        while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) {
            ++at_;
        }
    }

    std::string_view text_;
    size_t at_ = 0;
    int depth_ = 0;
};

}  // namespace

std::optional<Members> read_object(std::string_view text) {
    Members members;
    Scanner scanner(text);
    if (!scanner.object(&members) || !scanner.at_end()) {
        return std::nullopt;
    }
    return members;
}

std::optional<std::string> read_string(std::string_view value) {
    std::string decoded;
    Scanner scanner(value);
    if (!scanner.string(&decoded) || !scanner.at_end()) {
        return std::nullopt;
    }
    return decoded;
}

}  // namespace launcher
