// Evaluating tokens with llama.cpp, and what each call cost.
#pragma once

#include "paging_counters.h"
#include "sha256.h"
#include "telemetry.h"

#include "llama.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace moe {

class Pager;
enum class Phase : uint8_t;

// The token with the largest logit, the lowest id among equals. Throws Error(other) when a logit is NaN.
llama_token greedy_token(const float * logits, int32_t n_vocab);

// All tokens of the text, with the model's own begin-of-text token if it wants one.
std::vector<llama_token> tokenize(const llama_vocab * vocab, const std::string & text);

// The token's bytes as generated text shows them: control tokens have none.
std::string token_bytes(const llama_vocab * vocab, llama_token token);

class Decoder {
public:
    // `pager` is nullptr in plain mode. Both must outlive the decoder.
    Decoder(llama_context * context, Pager * pager);

    // From here on every row of logits that is used goes into the digest.
    void start_digest() { digest_.emplace(); }
    std::optional<std::string> digest() const;

    // The prompt, in batches of the context's batch size; afterwards logits() is the last token's row.
    CallCost prefill(const std::vector<llama_token> & prompt);

    // One generated token.
    CallCost step(llama_token token);

    // The next token by the last row of logits.
    llama_token greedy() const;

private:
    enum class Logits { none, last };
    CallCost evaluate(Phase phase, const llama_token * tokens, int32_t count, Logits logits);
    void take_logits();

    llama_context * context_;
    Pager * pager_;
    int32_t n_vocab_;
    llama_pos position_ = 0;
    PagerCounters counted_;  // up to the end of the last call: what is read ahead between two belongs to the later one
    const float * logits_ = nullptr;
    std::optional<Sha256> digest_;
};

}  // namespace moe
