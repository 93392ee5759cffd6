// Text of which bytes may be wrong or not there yet: a token can hold half a character.
#pragma once

#include <cstddef>
#include <string>

namespace moe {

// Length of the well-formed UTF-8 sequence at `at`, 0 if there is none (overlong forms, surrogates and
// code points above U+10FFFF are not well-formed).
size_t utf8_length(const std::string & text, size_t at);

// `code_point` must be one that UTF-8 can encode: no surrogate, at most U+10FFFF.
void append_utf8(std::string & text, char32_t code_point);

// Cuts a stream of bytes where no character is cut.
class Utf8Cutter {
public:
    // What came in so far, without a character at its end of which more may follow.
    std::string take(const std::string & bytes);

    // The same when nothing follows: the beginning of a character comes out as the bytes it is.
    std::string take_last(const std::string & bytes);

private:
    std::string held_;
};

}  // namespace moe
