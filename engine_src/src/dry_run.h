// What setting up a run takes, found out by doing it without the large allocations.
#pragma once

#include "options.h"

#include <cstdint>
#include <optional>
#include <string>

namespace moe {

class Pager;
struct ModelFacts;

struct DryRun {
    uint64_t kv_bytes = 0;
    uint64_t graph_bytes = 0;     // llama.cpp's compute buffers
    uint64_t logits_bytes = 0;    // of the rows beyond the first: allocated when a decode asks for so many
    uint64_t scratch_bytes = 0;   // of one CPU backend
    uint64_t repacked_bytes = 0;  // copies of weights
    uint64_t base_bytes = 0;      // VmData when everything was set up

    // Tokens of the prompt, or of the text to score; empty without one.
    std::optional<uint32_t> n_prompt;
};

// llama.cpp itself sets up model and context, in a forked child, without weights, KV cache and compute buffers. The
// size of the arena has no part in it: one dry run serves for any. Empty when the child died without an answer, which
// nothing but a memory limit is known to do. Throws Error when the model cannot be used.
std::optional<DryRun> dry_run(const Options & options, const ModelFacts & facts, const std::string & prompt,
                              Pager * pager);

}  // namespace moe
