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

    // Rows of logits are wanted from token `first_wanted` on.
    void fill(const llama_token * tokens, int32_t count, llama_pos first, int32_t first_wanted) {
        batch_.n_tokens = count;
        for (int32_t i = 0; i < count; ++i) {
            batch_.token[i] = tokens[i];
            batch_.pos[i] = first + i;
            batch_.n_seq_id[i] = 1;
            batch_.seq_id[i][0] = 0;
            batch_.logits[i] = i >= first_wanted ? 1 : 0;
        }
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
    cost.eviction_groups = after.eviction_groups - before.eviction_groups;
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

double token_nll(const float * logits, int32_t n_vocab, llama_token token) {
    const double largest = static_cast<double>(*std::max_element(logits, logits + n_vocab));
    double sum = 0;
    for (int32_t i = 0; i < n_vocab; ++i) {
        sum += std::exp(static_cast<double>(logits[i]) - largest);
    }
    return std::log(sum) + largest - static_cast<double>(logits[token]);
}

std::vector<llama_token> tokenize(const llama_vocab * vocab, const std::string & text, TextPlace place) {
    const bool begins = place != TextPlace::continuation;
    const bool specials = place != TextPlace::document;
    const int32_t length = static_cast<int32_t>(text.size());
    std::vector<llama_token> tokens(text.size() + 8);
    const auto fill = [&] {
        const auto room = static_cast<int32_t>(tokens.size());
        return llama_tokenize(vocab, text.data(), length, tokens.data(), room, begins, specials);
    };
    int32_t n = fill();
    if (n < 0) {
        tokens.resize(static_cast<size_t>(-n));
        n = fill();
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
        ++turn_;
    }
}

CallCost Decoder::prefill(const std::vector<llama_token> & prompt, const std::atomic<bool> * cancelled) {
    CallCost sum;
    const size_t step = llama_n_batch(context_);
    for (size_t at = 0; at < prompt.size(); at += step) {
        if (cancelled && cancelled->load()) {
            return sum;
        }
        const auto count = static_cast<int32_t>(std::min(step, prompt.size() - at));
        const bool last = at + step >= prompt.size();
        sum += evaluate(Phase::prefill, prompt.data() + at, count, last ? count - 1 : count);
    }
    take_logits(-1);
    return sum;
}

CallCost Decoder::step(llama_token token) {
    const CallCost cost = evaluate(Phase::decode, &token, 1, 0);
    take_logits(-1);
    return cost;
}

CallCost Decoder::read(const llama_token * tokens, int32_t count, int32_t first_wanted) {
    return evaluate(Phase::prefill, tokens, count, first_wanted);
}

double Decoder::nll_after(int32_t index, llama_token next) {
    take_logits(index);
    return nll(next);
}

llama_token Decoder::greedy() const { return greedy_token(logits_, n_vocab_); }

CallCost Decoder::evaluate(Phase phase, const llama_token * tokens, int32_t count, int32_t first_wanted) {
    Batch batch(count);
    batch.fill(tokens, count, position_, first_wanted);

    const CallInfo call{phase, static_cast<uint64_t>(position_), static_cast<uint32_t>(count), turn_};
    if (pager_) {
        pager_->begin_call(call);
    }
    if (dump_) {
        dump_->begin_call(call);
    }
    // The clock is read outside of getrusage: that call brings the scheduler's books up to date, so a CPU quota or a
    // neighbour takes the core away at its return rather than while computing.
    const auto start = std::chrono::steady_clock::now();
    const rusage before = usage_now();
    const int32_t status = llama_decode(context_, batch.get());
    const rusage after = usage_now();
    const auto end = std::chrono::steady_clock::now();

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

void Decoder::take_logits(int32_t index) {
    logits_ = llama_get_logits_ith(context_, index);
    if (!logits_) {
        throw Error(ExitCode::other, "llama.cpp returned no logits");
    }
    if (digest_) {
        static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the digest is defined over little-endian floats");
        digest_->update(logits_, sizeof(float) * static_cast<size_t>(n_vocab_));
    }
}

}  // namespace moe
