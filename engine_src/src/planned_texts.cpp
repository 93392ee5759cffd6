#include "planned_texts.h"

#include "decode.h"
#include "error.h"
#include "process.h"
#include "session_input.h"

#include <sys/stat.h>

#include <algorithm>
#include <string>

namespace moe {

std::vector<llama_token> read_given_text(const Options & options, const llama_vocab * vocab) {
    if (!options.given_text) {
        return {};
    }
    const std::string & path = *options.given_text;
    struct stat file {};
    if (stat(path.c_str(), &file) == 0 && !S_ISREG(file.st_mode)) {
        throw Error(ExitCode::usage, "--given-text: '" + path + "' is not a regular file");
    }
    // No more of a long text than is needed. Where it is cut, the last word is not the text's own, so the last tokens do
    // not count.
    constexpr size_t kUncertain = 64;
    const auto wanted = static_cast<size_t>(options.n_predict);
    for (uint64_t most = 8 * wanted + 4096;; most *= 4) {
        const std::string text = read_file(path, "given text", most);
        std::vector<llama_token> tokens = tokenize(vocab, text, TextPlace::continuation);
        const bool whole = text.size() < most;
        if (tokens.size() >= wanted + (whole ? 0 : kUncertain)) {
            tokens.resize(wanted);
            return tokens;
        }
        if (whole) {
            throw Error(ExitCode::usage, "--given-text: '" + path + "' has " + std::to_string(tokens.size()) +
                                             " tokens, --predict asks for " + std::to_string(wanted));
        }
    }
}

uint64_t longest_prompt_bytes(const llama_vocab * vocab, uint32_t n_ctx) {
    size_t longest = 1;
    for (llama_token token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
        longest = std::max(longest, token_bytes(vocab, token).size());
    }
    return std::min<uint64_t>(uint64_t{longest} * n_ctx, SessionInput::kMaxLine);
}

void rehearse_texts(const Options & options, const llama_vocab * vocab) {
    read_given_text(options, vocab);
    if (!options.session) {
        return;
    }
    // One word and many: which of the two takes more depends on the tokenizer.
    const auto bytes = static_cast<size_t>(longest_prompt_bytes(vocab, options.n_ctx));
    std::string text(bytes, 'x');
    tokenize(vocab, text, TextPlace::beginning);
    for (size_t i = 1; i < bytes; i += 2) {
        text[i] = ' ';
    }
    tokenize(vocab, text, TextPlace::beginning);
}

}  // namespace moe
