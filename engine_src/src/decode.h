// Evaluating tokens with llama.cpp, and what each call cost.
#pragma once

#include "paging_counters.h"
#include "sha256.h"
#include "telemetry.h"

#include "llama.h"

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace moe {

class LayerDump;
class Pager;
enum class Phase : uint8_t;

// The token with the largest logit, the lowest id among equals. Throws Error(other) when a logit is NaN.
llama_token greedy_token(const float * logits, int32_t n_vocab);

// Negative log-likelihood of a token by a row of logits, in nats.
double token_nll(const float * logits, int32_t n_vocab, llama_token token);

// A prompt at the beginning or inside of a sequence, or a document: whose bytes are all text, also where they spell a
// special token.
enum class TextPlace { beginning, continuation, document };

// All tokens of the text; where it begins a sequence, with the model's own begin-of-text token if it wants one.
std::vector<llama_token> tokenize(const llama_vocab * vocab, const std::string & text, TextPlace place);

// The token's bytes as generated text shows them: control tokens have none.
std::string token_bytes(const llama_vocab * vocab, llama_token token);

class Decoder {
public:
    // `pager` is nullptr in plain mode. Both must outlive the decoder.
    Decoder(llama_context * context, Pager * pager);

    // From here on every row of logits that is used goes into the digest.
    void start_digest() { digest_.emplace(); }
    std::optional<std::string> digest() const;

    // From here on the layer's rows of every call go into the dump, which must outlive the decoder.
    void dump_to(LayerDump & dump) { dump_ = &dump; }

    // The next prompt starts a sequence of its own.
    void restart();

    // Tokens of the sequence that have been evaluated.
    uint64_t n_past() const { return static_cast<uint64_t>(position_); }

    // The prompt, in batches of the context's batch size; afterwards greedy() goes by the last token's row of logits.
    // `cancelled`, if given, is looked at before each batch: the rest is then left out, and there are no logits.
    CallCost prefill(const std::vector<llama_token> & prompt, const std::atomic<bool> * cancelled = nullptr);

    // One generated token.
    CallCost step(llama_token token);

    // The next tokens of a text, one batch at most. Those from index `first_wanted` on get rows of logits.
    CallCost read(const llama_token * tokens, int32_t count, int32_t first_wanted);

    // Negative log-likelihood of `next` after token `index` of the batch that read() was given last, in nats.
    double nll_after(int32_t index, llama_token next);

    // The next token by the last row of logits.
    llama_token greedy() const;

    // Negative log-likelihood of a token by the last row of logits, in nats.
    double nll(llama_token token) const { return token_nll(logits_, n_vocab_, token); }

private:
    CallCost evaluate(Phase phase, const llama_token * tokens, int32_t count, int32_t first_wanted);
    void take_logits(int32_t index);

    llama_context * context_;
    Pager * pager_;
    LayerDump * dump_ = nullptr;
    int32_t n_vocab_;
    llama_pos position_ = 0;
    uint64_t turn_ = 0;
    PagerCounters counted_;  // up to the end of the last call: what is read ahead between two belongs to the later one
    const float * logits_ = nullptr;  // the row that was used last
    std::optional<Sha256> digest_;
};

}  // namespace moe
