// Runs the expert matmuls of a decode over the arena: makes the routed experts resident, or streams them through in
// groups when a batch routes to more of them than there are slots.
//
// The matmuls of one layer are separate nodes of the graph, with other nodes computed in between. A *pass* spans
// them: it begins with the layer's first expert matmul, where all parts of all missing experts are
// read, and ends with the last, where the experts lose their pins.
#pragma once

#include "aligned_memory.h"
#include "arena.h"
#include "catalog.h"
#include "expert_matmul.h"
#include "io_pool.h"
#include "slot_layout.h"

#include <cstdint>
#include <vector>

namespace moe {

struct ExecutorCounters {
    uint64_t requests = 0;
    uint64_t hits = 0;
    uint64_t misses = 0;
    uint64_t evictions = 0;
    double stall_ms = 0;
    double manage_ms = 0;
};

// Not thread-safe: contexts that share a model decode one after the other.
class Executor {
public:
    // `reuse` false: experts are forgotten at the end of each pass. Everything passed in must outlive it.
    Executor(const Catalog & catalog, const SlotLayout & layout, IoPool & io, uint32_t n_slots, bool reuse);

    // Computes a MUL_MAT_ID node whose weight is an expert tensor of the catalogue. Throws Error; the arena
    // is then consistent and the next decode starts afresh.
    void compute(ggml_tensor * node, ggml_backend_t cpu);

    ExecutorCounters counters() const;

private:
    struct Pass {
        bool active = false;
        uint32_t block = 0;
        uint64_t parts_done = 0;  // bit per part
        Routing routing;
        std::vector<ExpertSlot> resident;   // pinned until the pass ends
        std::vector<uint32_t> streamed;     // experts that pass through `stream_slots`, part by part
        std::vector<uint32_t> stream_slots;
    };

    void run_node(ggml_tensor * node, PartRef ref, ggml_backend_t cpu);
    bool continues_pass(const ggml_tensor * ids, PartRef ref) const;
    void begin_pass(uint32_t block, Routing routing);
    void load_missing(const std::vector<uint32_t> & missing);
    void plan_streaming(const std::vector<uint32_t> & missing);
    void end_pass(bool keep);
    void run_streamed(ggml_tensor * node, PartRef ref, ggml_backend_t cpu);
    void wait(ReadBatch & batch);
    ReadRequest request(PartRef ref, uint32_t expert, uint32_t slot) const;
    uint32_t key(uint32_t expert) const { return catalog_.block(pass_.block).first_key + expert; }
    std::byte * weights(PartRef ref) const;

    const Catalog & catalog_;
    const SlotLayout & layout_;
    IoPool & io_;
    const bool reuse_;
    Arena arena_;
    AlignedMemory memory_;
    ExpertMatmul matmul_;
    Pass pass_;
    ExecutorCounters counters_;
    int64_t compute_ns_ = 0;  // of the node at hand: what is left of its time is bookkeeping or waiting
    int64_t stall_ns_ = 0;
};

}  // namespace moe
