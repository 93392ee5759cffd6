#include "decode.h"

#include "error.h"
#include "layer_dump.h"
#include "llama_session.h"
#include "pager.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace moe {

namespace {

// llama_batch with room for `capacity` tokens of sequence 0.
class Batch {
public:
    explicit Batch(int32_t capacity) : batch_(llama_batch_init(capacity, 0, 1)) {}
    ~Batch() { llama_batch_free(batch_); }
    Batch(const Batch &) = delete;
    Batch & operator=(const Batch &) = delete;

    void fill(const llama_token * tokens, int32_t count, llama_pos first, bool want_last) {
        batch_.n_tokens = count;
        for (int32_t i = 0; i < count; ++i) {
            batch_.token[i] = tokens[i];
            batch_.pos[i] = first + i;
            batch_.n_seq_id[i] = 1;
            batch_.seq_id[i][0] = 0;
            batch_.logits[i] = 0;
        }
        batch_.logits[count - 1] = want_last ? 1 : 0;
    }
    const llama_batch & get() const { return batch_; }

private:
    llama_batch batch_;
};

int64_t cpu_us(const rusage & usage) {
    const auto us = [](const timeval & time) { return int64_t{time.tv_sec} * 1000000 + time.tv_usec; };
    return us(usage.ru_utime) + us(usage.ru_stime);
}

rusage usage_now() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage;
}

PagingCost difference(const PagerCounters & before, const PagerCounters & after) {
    PagingCost cost;
    cost.io_ms = after.io_ms - before.io_ms;
    cost.stall_ms = after.stall_ms - before.stall_ms;
    cost.manage_ms = after.manage_ms - before.manage_ms;
    cost.read_bytes = after.read_bytes - before.read_bytes;
    cost.requests = after.requests - before.requests;
    cost.hits = after.hits - before.hits;
    cost.misses = after.misses - before.misses;
    cost.evictions = after.evictions - before.evictions;
    if (after.foresight) {
        const PagerCounters::Foresight was = before.foresight.value_or(PagerCounters::Foresight{});
        cost.foresight = PagerCounters::Foresight{
            after.foresight->read_bytes - was.read_bytes, after.foresight->experts - was.experts,
            after.foresight->useful - was.useful, after.foresight->retained - was.retained};
    }
    if (after.drops) {
        const PagerCounters::Drops was = before.drops.value_or(PagerCounters::Drops{});
        cost.drops = PagerCounters::Drops{after.drops->routed - was.routed, after.drops->dropped - was.dropped};
    }
    return cost;
}

}  // namespace

llama_token greedy_token(const float * logits, int32_t n_vocab) {
    int32_t best = 0;
    bool nan = std::isnan(logits[0]);
    for (int32_t i = 1; i < n_vocab; ++i) {
        nan = nan || std::isnan(logits[i]);
        if (logits[i] > logits[best]) {
            best = i;
        }
    }
    if (nan) {
        throw Error(ExitCode::other, "the model produced a logit that is not a number");
    }
    return best;
}

std::vector<llama_token> tokenize(const llama_vocab * vocab, const std::string & text, TextPlace place) {
    const bool specials = place == TextPlace::beginning;
    const int32_t length = static_cast<int32_t>(text.size());
    std::vector<llama_token> tokens(text.size() + 8);
    int32_t n = llama_tokenize(vocab, text.data(), length, tokens.data(), static_cast<int32_t>(tokens.size()), specials, true);
    if (n < 0) {
        tokens.resize(static_cast<size_t>(-n));
        n = llama_tokenize(vocab, text.data(), length, tokens.data(), static_cast<int32_t>(tokens.size()), specials, true);
    }
    tokens.resize(static_cast<size_t>(std::max(n, 0)));
    return tokens;
}

std::string token_bytes(const llama_vocab * vocab, llama_token token) {
    std::string piece(64, '\0');
    int32_t n = llama_token_to_piece(vocab, token, piece.data(), static_cast<int32_t>(piece.size()), 0, false);
    if (n < 0) {
        piece.resize(static_cast<size_t>(-n));
        n = llama_token_to_piece(vocab, token, piece.data(), static_cast<int32_t>(piece.size()), 0, false);
    }
    piece.resize(static_cast<size_t>(std::max(n, 0)));
    return piece;
}

Decoder::Decoder(llama_context * context, Pager * pager)
    : context_(context),
      pager_(pager),
      n_vocab_(llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context)))) {}

std::optional<std::string> Decoder::digest() const {
    return digest_ ? std::optional<std::string>(digest_->hex()) : std::nullopt;
}

void Decoder::restart() {
    if (position_ > 0) {
        llama_memory_clear(llama_get_memory(context_), true);
        position_ = 0;
    }
}

CallCost Decoder::prefill(const std::vector<llama_token> & prompt, const std::atomic<bool> * cancelled) {
    CallCost sum;
    const size_t step = llama_n_batch(context_);
    for (size_t at = 0; at < prompt.size(); at += step) {
        if (cancelled && cancelled->load()) {
            return sum;
        }
        const size_t count = std::min(step, prompt.size() - at);
        const bool last = at + count == prompt.size();
        sum += evaluate(Phase::prefill, prompt.data() + at, static_cast<int32_t>(count), last ? Logits::last : Logits::none);
    }
    take_logits();
    return sum;
}

CallCost Decoder::step(llama_token token) {
    const CallCost cost = evaluate(Phase::decode, &token, 1, Logits::last);
    take_logits();
    return cost;
}

llama_token Decoder::greedy() const { return greedy_token(logits_, n_vocab_); }

double Decoder::nll(llama_token token) const {
    const double largest = *std::max_element(logits_, logits_ + n_vocab_);
    double sum = 0;
    for (int32_t i = 0; i < n_vocab_; ++i) {
        sum += std::exp(static_cast<double>(logits_[i]) - largest);
    }
    return std::log(sum) + largest - static_cast<double>(logits_[token]);
}

CallCost Decoder::evaluate(Phase phase, const llama_token * tokens, int32_t count, Logits logits) {
    Batch batch(count);
    batch.fill(tokens, count, position_, logits == Logits::last);

    const CallInfo call{phase, static_cast<uint64_t>(position_), static_cast<uint32_t>(count)};
    if (pager_) {
        pager_->begin_call(call);
    }
    if (dump_) {
        dump_->begin_call(call);
    }
    const rusage before = usage_now();
    const auto start = std::chrono::steady_clock::now();
    const int32_t status = llama_decode(context_, batch.get());
    const auto end = std::chrono::steady_clock::now();
    const rusage after = usage_now();

    if (status != 0) {
        if (pager_) {
            if (const std::optional<Error> error = pager_->last_error()) {
                throw *error;
            }
        }
        const std::string reason = last_llama_error();
        throw Error(ExitCode::other, "decoding failed with status " + std::to_string(status) +
                                         (reason.empty() ? "" : ": " + reason));
    }
    position_ += count;
    if (dump_) {
        dump_->end_call();
    }
    if (pager_) {
        pager_->end_call();
    }

    CallCost cost;
    cost.wall_ms = std::chrono::duration<double, std::milli>(end - start).count();
    cost.majflt = static_cast<uint64_t>(after.ru_majflt - before.ru_majflt);
    cost.minflt = static_cast<uint64_t>(after.ru_minflt - before.ru_minflt);
    cost.cpu_ms = static_cast<double>(cpu_us(after) - cpu_us(before)) / 1000.0;
    cost.invol_ctx = static_cast<uint64_t>(after.ru_nivcsw - before.ru_nivcsw);
    if (pager_) {
        const PagerCounters counted = pager_->counters();
        cost.paging = difference(counted_, counted);
        counted_ = counted;
    }
    return cost;
}

void Decoder::take_logits() {
    logits_ = llama_get_logits_ith(context_, -1);
    if (!logits_) {
        throw Error(ExitCode::other, "llama.cpp returned no logits");
    }
    if (digest_) {
        static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the digest is defined over little-endian floats");
        digest_->update(logits_, sizeof(float) * static_cast<size_t>(n_vocab_));
    }
}

}  // namespace moe
