// Expert paging for llama.cpp, unpatched: the one interface between the engine's command line and
// the paging ggml device.
//
// Order of use: open() -> configure(model params) -> load the model -> finish_loading(model) ->
// create contexts -> decode. The Pager must outlive the model and every context.
#pragma once

#include "error.h"

#include "llama.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

struct ggml_threadpool;

namespace moe {

enum class DensePolicy { mmap, anon };

struct PagerOptions {
    std::string model_path;
    uint64_t cache_bytes = 0;  // arena size; 0: no reuse between calls, the smallest arena that works
    int io_threads = 4;
    bool direct_io = true;  // a request: what came of it stands in PagerInfo
    DensePolicy dense = DensePolicy::mmap;
    uint32_t n_batch = 512;    // largest batch that will be decoded: sizes the scratch of the matmuls
    uint32_t expert_used = 0;  // top-k when it is overridden; 0: the model's own. Sizes the smallest arena.
};

// Fixed when the model is open.
struct PagerInfo {
    bool direct_io = false;         // effective: verified at open against buffered reads
    std::string direct_io_reason;   // why not, or how it was verified
    uint64_t arena_bytes = 0;
    uint64_t slot_bytes = 0;
    uint32_t slots = 0;
    uint64_t io_buffer_bytes = 0;      // of reads beside the slots, and of matmuls beside the CPU backend's own
    uint64_t thread_stack_bytes = 0;   // of the read lanes
    uint64_t dense_anon_bytes = 0;     // dense weights held in anonymous memory
    uint64_t expert_bytes = 0;         // all routed experts of the model
    uint64_t expert_bytes_max = 0;     // largest single expert (all its parts)
    uint32_t n_moe_layer = 0;
    uint32_t n_expert = 0;
};

// Cumulative since open(). Reading it between decodes is race-free.
struct PagerCounters {
    uint64_t requests = 0;    // unique (layer, expert) per batch and layer
    uint64_t hits = 0;
    uint64_t misses = 0;
    uint64_t evictions = 0;
    uint64_t reads = 0;
    uint64_t read_bytes = 0;  // asked from storage: aligned windows under direct I/O
    double io_ms = 0;         // wall time with at least one read in flight
    double stall_ms = 0;      // wall time during which compute waited for reads
    double manage_ms = 0;     // slot bookkeeping
};

class Pager {
public:
    // Reads the GGUF's catalogue (no weights), sizes the arena, verifies direct I/O, but reserves nothing large.
    // Throws Error (model: not usable, io: cannot be read, usage: arena below one layer's needs is raised to it, never refused).
    static std::unique_ptr<Pager> open(const PagerOptions & options);

    virtual ~Pager() = default;

    // Sets overrides, load mode and flags; the params then point into this object.
    virtual void configure(llama_model_params & params) = 0;

    // Call once the model is loaded: reserves the arena, starts the read lanes.
    virtual void finish_loading(const llama_model * model) = 0;

    // Compute threads of the nested CPU backend; the pool is shared with the context.
    virtual void set_threadpool(ggml_threadpool * pool, int n_threads) = 0;

    virtual PagerInfo info() const = 0;
    virtual PagerCounters counters() const = 0;

    // Why the last llama_decode failed, when the reason lies here: a decode whose experts could not be read returns an
    // error and no logits. Nothing after a decode that succeeded.
    virtual std::optional<Error> last_error() const = 0;
};

}  // namespace moe
