// Texts that a run tokenises beside its prompt. Tokenising takes many times a text's size, so the dry run does what the
// run will do, and texts are no longer than that.
#pragma once

#include "options.h"

#include "llama.h"

#include <cstdint>
#include <vector>

namespace moe {

// The text to be decoded instead of the model's own choices; empty if there is none. Throws Error.
std::vector<llama_token> read_given_text(const Options & options, const llama_vocab * vocab);

// No prompt of more bytes has `n_ctx` tokens or fewer.
uint64_t longest_prompt_bytes(const llama_vocab * vocab, uint32_t n_ctx);

// Tokenises all that a run of these options may have to, but its prompt.
void rehearse_texts(const Options & options, const llama_vocab * vocab);

}  // namespace moe
