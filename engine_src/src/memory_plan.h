// How much anonymous memory a run will take, known before any of it is allocated.
#pragma once

#include "options.h"

#include <cstdint>
#include <optional>
#include <string>

namespace moe {

class Pager;
struct ModelFacts;

struct MemoryPlan {
    uint64_t arena_bytes = 0;    // expert slots
    uint64_t dense_bytes = 0;    // all other weights, when they are held in anonymous memory
    uint64_t kv_bytes = 0;       // KV cache or recurrent state
    uint64_t compute_bytes = 0;  // graph buffers and kernel scratch
    uint64_t stack_bytes = 0;    // of compute threads and read lanes
    uint64_t io_bytes = 0;       // read buffers
    uint64_t base_bytes = 0;     // the process itself: program, vocabulary, metadata, graphs
    std::optional<uint64_t> allowed_bytes;  // RLIMIT_DATA; empty: unlimited

    bool lower_bound = false;  // no more could be found out under the limit: more may be needed than this says

    // The dry run's answer to whether prompt and prediction fit; empty without a prompt.
    std::optional<uint32_t> n_prompt;

    uint64_t needed_bytes() const;
    bool fits() const { return !allowed_bytes || needed_bytes() <= *allowed_bytes; }

    std::string json() const;          // with "type": what --plan-memory prints
    std::string refusal() const;       // the one line for stderr
};

// Sizes come from llama.cpp itself, which sets up model and context in a forked child without allocating
// weights, KV cache or compute buffers. Throws Error when the model cannot be used.
MemoryPlan plan_memory(const Options & options, const ModelFacts & facts, const std::string & prompt, Pager * pager);

}  // namespace moe
