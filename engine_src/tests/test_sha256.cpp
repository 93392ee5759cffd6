// Against the examples of FIPS 180-4 and their well-known companions.
#include "sha256.h"

#include "check.h"

#include <algorithm>
#include <string>

namespace {

std::string hash(const std::string & text) {
    moe::Sha256 sha;
    sha.update(text.data(), text.size());
    return sha.hex();
}

void known_answers() {
    CHECK(hash("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(hash("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(hash(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Every length around the block size takes another path through padding and buffering.
void pieces_do_not_matter() {
    for (size_t length = 0; length <= 200; ++length) {
        std::string text;
        for (size_t i = 0; i < length; ++i) {
            text += static_cast<char>(i * 7);
        }
        for (const size_t piece : {size_t{1}, size_t{3}, size_t{55}, size_t{64}, size_t{65}}) {
            moe::Sha256 sha;
            for (size_t at = 0; at < length; at += piece) {
                sha.update(text.data() + at, std::min(piece, length - at));
            }
            CHECK(sha.hex() == hash(text));
        }
    }
}

void reading_the_digest_does_not_disturb_it() {
    moe::Sha256 sha;
    sha.update("a", 1);
    CHECK(sha.hex() == sha.hex());
    sha.update("bc", 2);
    CHECK(sha.hex() == hash("abc"));
}

}  // namespace

int main() {
    check::run("known answers", known_answers);
    check::run("pieces do not matter", pieces_do_not_matter);
    check::run("reading the digest does not disturb it", reading_the_digest_does_not_disturb_it);
    return check::result();
}
