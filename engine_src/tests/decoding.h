// Decodes tiny models, plain and paged, and keeps every logit for comparison.
#pragma once

#include "cache_shape.h"
#include "error.h"
#include "expert_store.h"
#include "pager.h"

#include "check.h"
#include "temp_dir.h"
#include "tiny_model.h"

#include "ggml-cpu.h"
#include "llama.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace decoding {

using namespace moe;

constexpr int kPrompt = 45;
constexpr int kDecode = 24;
constexpr int kBatch = 30;  // so that the prompt takes two batches

struct Deleter {
    void operator()(llama_model * m) const { llama_model_free(m); }
    void operator()(llama_context * c) const { llama_free(c); }
    void operator()(ggml_threadpool * t) const { ggml_threadpool_free(t); }
};
using ModelPtr = std::unique_ptr<llama_model, Deleter>;
using ContextPtr = std::unique_ptr<llama_context, Deleter>;
using PoolPtr = std::unique_ptr<ggml_threadpool, Deleter>;

struct Run {
    std::vector<float> logits;  // of every token of prompt and continuation
    std::vector<llama_token> tokens;
    PagerInfo info;
    PagerCounters counters;
    int failed_at = -1;  // decode call that returned an error
    std::optional<Error> error;
};

// Idle threads sleep: spinning ones would take the cores from whatever else runs on the machine.
inline PoolPtr make_pool(int n_threads) {
    ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
    params.poll = 0;
    return PoolPtr(ggml_threadpool_new(&params));
}

inline ContextPtr make_context(llama_model * model, int n_threads) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 256;
    params.n_batch = params.n_ubatch = kBatch;
    params.n_threads = params.n_threads_batch = n_threads;
    // As in the engine. AUTO would choose differently before and after there is a paging device in the process.
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    return ContextPtr(llama_init_from_model(model, params));
}

// Decodes `tokens` and appends all their logits. The return value is llama_decode's.
inline int decode(llama_context * context, const std::vector<llama_token> & tokens, int first_pos, Run & run) {
    llama_batch batch = llama_batch_init(static_cast<int32_t>(tokens.size()), 0, 1);
    for (size_t i = 0; i < tokens.size(); ++i) {
        batch.token[i] = tokens[i];
        batch.pos[i] = first_pos + static_cast<int>(i);
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    batch.n_tokens = static_cast<int32_t>(tokens.size());
    const int rc = llama_decode(context, batch);
    llama_batch_free(batch);
    if (rc == 0) {
        const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context)));
        for (size_t i = 0; i < tokens.size(); ++i) {
            const float * row = llama_get_logits_ith(context, static_cast<int32_t>(i));
            run.logits.insert(run.logits.end(), row, row + n_vocab);
        }
        run.tokens.push_back(static_cast<llama_token>(
            std::max_element(run.logits.end() - n_vocab, run.logits.end()) - (run.logits.end() - n_vocab)));
    }
    return rc;
}

inline std::vector<llama_token> make_prompt(int seed) {
    std::vector<llama_token> prompt;
    for (int i = 0; i < kPrompt; ++i) {
        prompt.push_back((i * (37 + 6 * seed) + 11 + seed) % 256);
    }
    return prompt;
}

// Evaluates the prompt from position 0 on and continues it. `spoil` runs before each decode call, numbered from 0; the
// pager, if there is one, is told about each.
template <typename Spoil>
void generate(llama_context * context, Run & run, const Spoil & spoil, Pager * pager = nullptr, int prompt_seed = 0) {
    const std::vector<llama_token> prompt = make_prompt(prompt_seed);
    int call = 0;
    const auto step = [&](Phase phase, const std::vector<llama_token> & tokens, int pos) {
        spoil(call);
        if (pager != nullptr) {
            pager->begin_call({phase, static_cast<uint64_t>(pos), static_cast<uint32_t>(tokens.size())});
        }
        if (decode(context, tokens, pos, run) != 0) {
            run.failed_at = call;
            return false;
        }
        if (pager != nullptr) {
            pager->end_call();
        }
        ++call;
        return true;
    };
    for (int pos = 0; pos < kPrompt; pos += kBatch) {
        const auto last = prompt.begin() + std::min(pos + kBatch, kPrompt);
        if (!step(Phase::prefill, {prompt.begin() + pos, last}, pos)) {
            return;
        }
    }
    for (int i = 0; i < kDecode; ++i) {
        if (!step(Phase::decode, {run.tokens.back()}, kPrompt + i)) {
            return;
        }
    }
}

inline Run run_plain(const std::string & path, int n_threads, int prompt_seed = 0) {
    llama_model_params params = llama_model_default_params();
    params.load_mode = LLAMA_LOAD_MODE_MMAP;
    params.use_extra_bufts = false;
    const ModelPtr model(llama_model_load_from_file(path.c_str(), params));
    const PoolPtr pool = make_pool(n_threads);
    const ContextPtr context = make_context(model.get(), n_threads);
    llama_attach_threadpool(context.get(), pool.get(), nullptr);
    Run run;
    generate(context.get(), run, [](int) {}, nullptr, prompt_seed);
    return run;
}

// A paged model that stays loaded, so that one prompt can follow another on a warm cache.
class Session {
public:
    explicit Session(const PagerOptions & options, int n_threads = 1, bool share_pool = false)
        : pool_(share_pool ? make_pool(n_threads) : nullptr), pager_(Pager::open(options)) {
        llama_model_params params = llama_model_default_params();
        pager_->configure(params);
        model_.reset(llama_model_load_from_file(options.model_path.c_str(), params));
        pager_->finish_loading(model_.get());
        context_ = make_context(model_.get(), n_threads);
        if (pool_) {
            llama_attach_threadpool(context_.get(), pool_.get(), nullptr);
            pager_->set_threadpool(pool_.get(), n_threads);
        }
    }

    ~Session() { pager_->release_model(); }
    Session(const Session &) = delete;
    Session & operator=(const Session &) = delete;

    // From an empty context. The counters of the result go on from those of earlier calls.
    template <typename Spoil>
    Run prompt(int seed, const Spoil & spoil) {
        llama_memory_clear(llama_get_memory(context_.get()), true);
        Run run;
        generate(context_.get(), run, spoil, pager_.get(), seed);
        run.info = pager_->info();
        run.counters = pager_->counters();
        run.error = pager_->last_error();
        return run;
    }
    Run prompt(int seed = 0) {
        return prompt(seed, [](int) {});
    }

    Pager & pager() { return *pager_; }
    llama_context * context() { return context_.get(); }

private:
    PoolPtr pool_;
    std::unique_ptr<Pager> pager_;
    ModelPtr model_;
    ContextPtr context_;
};

template <typename Spoil>
Run run_paged(const PagerOptions & options, int n_threads, bool share_pool, const Spoil & spoil) {
    Session session(options, n_threads, share_pool);
    const Run run = session.prompt(0, spoil);
    session.pager().close_traces();
    return run;
}

inline Run run_paged(const PagerOptions & options, int n_threads = 1, bool share_pool = false) {
    return run_paged(options, n_threads, share_pool, [](int) {});
}

inline bool same_bits(const Run & a, const Run & b) {
    return !a.logits.empty() && a.logits.size() == b.logits.size() && a.tokens == b.tokens &&
           std::memcmp(a.logits.data(), b.logits.data(), a.logits.size() * sizeof(float)) == 0;
}

// Of the largest experts.
inline uint64_t slot_bytes(const std::string & path) {
    PagerOptions options;
    options.model_path = path;
    return Pager::open(options)->info().least_arena_bytes;
}

inline StoreOptions store_options(const SlotLayout & layout, uint32_t n_slots) {
    const uint64_t bytes = n_slots * SlotClasses(layout.blocks()).largest().slot_bytes;
    const CacheShape shape = shape_cache(layout.blocks(), nullptr, {bytes, true, 1});
    return {shape.arena, shape.regions, true};
}

// `waits`: with overlap a fast storage may have delivered everything before it was needed.
inline void check_counters(const Run & run, uint64_t n_keys, uint64_t n_parts = 3, bool waits = true) {
    const PagerCounters & c = run.counters;
    CHECK(c.requests == c.hits + c.misses);
    CHECK(c.reads == c.misses * n_parts);
    const uint64_t wanted = c.misses * run.info.expert_bytes_max;
    CHECK(run.info.direct_io ? c.read_bytes >= wanted && c.read_bytes % 4096 == 0 : c.read_bytes == wanted);
    CHECK(c.evictions <= c.misses);
    CHECK(c.io_ms > 0 && c.manage_ms > 0);
    CHECK(c.stall_ms > 0 || !waits);
    uint64_t arena_bytes = 0;
    uint32_t slots = 0;
    for (const PagerInfo::SlotClass & size : run.info.classes) {
        arena_bytes += size.slots * size.slot_bytes;
        slots += size.slots;
    }
    CHECK(run.info.arena_bytes == arena_bytes && run.info.slots == slots);
    CHECK(run.info.expert_bytes == n_keys * run.info.expert_bytes_max);
}

// ThreadSanitizer looks at every weight that is read, and shows in which order threads touch them, not what they are: it
// gets narrow models. Elsewhere they stay wide, as what is read ahead in time depends on how long a layer computes.
constexpr bool kNarrow = std::string_view(MOE_SANITIZE_NAME) == "thread";

inline tiny::Model model(ggml_type type, uint32_t n_layer, uint32_t n_shards = 1) {
    tiny::Model m;
    m.expert_type = type;
    if (kNarrow && type == GGML_TYPE_Q8_0) {
        m.n_embd = 128;
        m.n_ff_exp = 64;
    }
    m.n_layer = n_layer;
    m.n_shards = n_shards;
    return m;
}

// llama.cpp's errors, and nothing else of what it says.
inline void quiet_log() {
    llama_log_set(
        [](ggml_log_level level, const char * text, void *) {
            if (level == GGML_LOG_LEVEL_ERROR) {
                std::fputs(text, stderr);
            }
        },
        nullptr);
}

}  // namespace decoding
