// Expert paging for llama.cpp, unpatched: the one interface between the engine's command line and
// the paging ggml device.
//
// Order of use: open() -> configure(model params) -> load the model -> finish_loading(model) ->
// create contexts -> decode. The Pager must outlive the model and every context.
#pragma once

#include "cache_size.h"
#include "call_info.h"
#include "error.h"
#include "executor.h"
#include "node_watcher.h"
#include "paging_counters.h"
#include "routing_policy.h"

#include "llama.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

struct ggml_threadpool;

namespace moe {

enum class DensePolicy { mmap, warm, anon };

struct PagerOptions {
    std::string model_path;
    uint64_t cache_bytes = 0;  // arena size; 0: no reuse between calls, the smallest arena that works
    // Instead: a cache of what fits into just so many bytes, be it less than one layer's top-k, all of it taken at load.
    // Throws Error(memory) below one expert of any size.
    std::optional<uint64_t> arena_bytes;
    std::string evict = "lru";  // a name that make_eviction_policy() knows
    int io_threads = 4;
    bool direct_io = true;  // a request: what came of it stands in PagerInfo
    DensePolicy dense = DensePolicy::mmap;
    uint32_t n_batch = 512;    // largest batch that will be decoded: sizes the scratch of the matmuls
    uint32_t expert_used = 0;  // top-k when it is overridden; 0: the model's own. Sizes the smallest arena.

    ExecutorOptions executor;
    std::optional<DropRule> drop;
    bool drop_in_prefill = false;
    ForesightOptions foresight;

    // Routing from a recorded trace. `cache_bytes` then are bytes of the traced model, whose experts' sizes the cache
    // accounts in: the arena gets the slots that such a cache may fill.
    std::string forced_routes;

    // Files to be written; "" for none.
    std::string route_trace;
    std::string io_trace;
    std::string compute_trace;
    std::string stats;
    std::optional<uint64_t> ram_budget_mb;  // as asked for, for the statistics
    std::optional<uint64_t> reserve_mb;
    std::string arch;  // the model's, for preambles
    ComputeTracer::Grain compute_grain = ComputeTracer::Grain::node;
    int n_threads = 1;  // of compute

    bool measure_only = false;  // will only be asked what it would take: no file is opened for writing
};

// Fixed when the model is open.
struct PagerInfo {
    bool direct_io = false;         // effective: verified at open against buffered reads
    std::string direct_io_reason;   // why not, or how it was verified
    uint64_t arena_bytes = 0;
    uint64_t least_arena_bytes = 0;  // one expert of any size
    uint32_t slots = 0;
    struct SlotClass {
        uint64_t slot_bytes = 0;
        uint32_t slots = 0;
        uint32_t experts = 0;  // of the model, of this size
    };
    std::vector<SlotClass> classes;  // smallest first
    std::string classes_json() const;
    double coverage = 0;             // share, 0 to 1, of all experts' bytes that can be resident at once
    uint64_t io_buffer_bytes = 0;      // of reads beside the slots, and of matmuls beside the CPU backend's own
    uint64_t io_buffer_most_bytes = 0; // the same for the number of slots that makes them largest
    uint64_t thread_stack_bytes = 0;   // of the read lanes
    uint64_t dense_anon_bytes = 0;     // dense weights held in anonymous memory
    uint64_t expert_bytes = 0;         // all routed experts of the model
    uint64_t expert_bytes_max = 0;     // largest single expert (all its parts)
    uint32_t n_moe_layer = 0;
    uint32_t n_expert = 0;
    uint32_t n_keys = 0;          // experts of all layers
    uint64_t capacity_bytes = 0;  // what the cache was asked to hold, cut to what there is
    uint64_t whole_bytes = 0;     // in the same bytes: all experts
    TokenCycle cycle;             // and one token's
    std::vector<uint32_t> cache_slots;  // of each size class that the cache counts in
    bool holds_cycle = false;
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

    // Call after finish_loading(). nullptr: nobody watches. Must outlive the last decode.
    virtual void watch(NodeWatcher * watcher) = 0;

    // Nothing reads the model's weights any more once this has returned; call it before the model goes.
    virtual void release_model() = 0;

    // Around every llama_decode: what it is, and that it has ended (traces of it are written then).
    virtual void begin_call(const CallInfo & call) = 0;
    virtual void end_call() = 0;

    // Reports what a trace file's system only tells at its end. Throws Error(io).
    virtual void close_traces() = 0;

    virtual const ForcedRoutes * forced_routes() const = 0;     // nullptr: none
    virtual const PredictionScore * prediction() const = 0;     // nullptr: not asked for
    virtual const ControlWatchdog * watchdog() const = 0;       // nullptr: nothing acts on predictions

    virtual PagerInfo info() const = 0;
    virtual PagerCounters counters() const = 0;

    // Why the last llama_decode failed, when the reason lies here: a decode whose experts could not be read returns an
    // error and no logits. Nothing after a decode that succeeded.
    virtual std::optional<Error> last_error() const = 0;
};

}  // namespace moe
