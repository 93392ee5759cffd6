// How much anonymous memory a run will take, known before any of it is allocated.
#pragma once

#include "dry_run.h"
#include "options.h"

#include <cstdint>
#include <optional>
#include <string>

namespace moe {

struct ModelFacts;
struct PagerInfo;

struct MemoryPlan {
    uint64_t arena_bytes = 0;    // expert slots
    uint64_t dense_bytes = 0;    // all other weights, when they are held in anonymous memory
    uint64_t kv_bytes = 0;       // KV cache or recurrent state
    uint64_t compute_bytes = 0;  // graph buffers, rows of logits and kernel scratch
    uint64_t stack_bytes = 0;    // of compute threads and read lanes
    uint64_t io_bytes = 0;       // read buffers
    uint64_t base_bytes = 0;     // the process itself: program, vocabulary, metadata, graphs
    std::optional<uint64_t> allowed_bytes;  // the smaller of RLIMIT_DATA and the budget; empty: neither
    const char * allowed_by = "";           // which of the two
    bool budget_above_limit = false;

    bool lower_bound = false;  // no more could be found out under the limit: more may be needed than this says

    // The dry run's answer to whether prompt and prediction fit; empty without a prompt.
    std::optional<uint32_t> n_prompt;

    uint64_t needed_bytes() const;
    uint64_t beside_arena_bytes() const { return needed_bytes() - arena_bytes; }
    bool fits() const { return !allowed_bytes || needed_bytes() <= *allowed_bytes; }

    std::string json() const;          // with "type": what --plan-memory prints
    std::string refusal() const;       // the one line for stderr
};

// Adds up what a dry run has measured and what the pager will reserve; `pager` is empty in plain mode. Under a budget
// the pager's buffers count as if its arena had the size that makes them largest, so that what is left for the arena
// does not depend on the arena. Throws Error(other) when the dry run died without a limit that explains it.
MemoryPlan plan_memory(const Options & options, const ModelFacts & facts, const std::optional<DryRun> & dry,
                       const std::optional<PagerInfo> & pager);

}  // namespace moe
