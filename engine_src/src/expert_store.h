// The experts in memory: which are there, which are being read, and what is read ahead of its use.
#pragma once

#include "arena.h"
#include "catalog.h"
#include "expert_matmul.h"
#include "io_pool.h"
#include "residency.h"
#include "slot_layout.h"
#include "slot_memory.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace moe {

struct StoreCounters {
    uint64_t hits = 0;
    uint64_t misses = 0;
    EvictionCounts evictions;
    uint64_t speculated = 0;         // experts that speculation brought in whole
    uint64_t speculated_useful = 0;  // of these, those that a layer then needed
    uint64_t retained = 0;
    uint64_t resident_bytes = 0;     // of the slots that hold an expert now
};

// The experts of one layer while it is computed.
struct LayerExperts {
    static constexpr size_t kInMemory = SIZE_MAX;

    explicit LayerExperts(IoPool & io) : batch(io) {}

    uint32_t block = 0;
    std::vector<ExpertSlot> resident;  // pinned: hits first, then those that are being read
    size_t n_hits = 0;
    // Of each part, the request that reads it for each of resident[n_hits..]; kInMemory where nothing is left to read.
    std::vector<std::vector<size_t>> requests;
    ReadBatch batch;

    // Instead of being read as a whole, experts that are too many for the arena pass through it part by part.
    std::vector<uint32_t> streamed;
    std::vector<uint32_t> stream_slots;

    bool all_in_memory = true;  // of `resident`: every part, no waiting needed
};

struct StoreOptions {
    ArenaShape arena;
    std::vector<SlotRegion> regions;  // the memory of its slots, in their order
    bool reuse = true;                // false: experts are forgotten at the end of each layer
    bool commit = false;              // take all memory at once
    std::string policy = "lru";       // of eviction
};

// Used by one thread, which is also the only one that waits for reads.
class ExpertStore {
public:
    // Everything passed in must outlive it.
    ExpertStore(const Catalog & catalog, const SlotLayout & layout, IoPool & io, const StoreOptions & options);
    ~ExpertStore();

    // A forward pass begins: call it once per decode.
    void begin_pass();

    // What speculation has read counts once it is collected.
    bool resident(uint32_t block, uint32_t expert) const;

    // Pins the block's `experts` (each once, least important for the future first) and asks for what is missing, part
    // `first_part` before the others. `residency` says what was found of each. Queued speculation gives way.
    std::unique_ptr<LayerExperts> begin(uint32_t block, const std::vector<uint32_t> & experts, uint32_t first_part,
                                        std::vector<Residency> & residency);

    // The same for a layer of which nothing is to be kept: all experts pass through, whether routed to or not.
    std::unique_ptr<LayerExperts> begin_load_all(uint32_t block);

    // Takes the pins away. Experts that have not been read completely, because computing was given up, are forgotten.
    void end(LayerExperts & layer);

    // A predicted expert: if it is resident, it is kept as if it were used now. Whether it was.
    bool retain(uint32_t block, uint32_t expert);

    // Reads an expert ahead of its use, into the place of the one that the policy names. Until a layer needs it, it is
    // (but for policies by pass) the next to be evicted itself. False when it is resident or on its way already, or
    // nothing can give way.
    bool speculate(uint32_t block, uint32_t expert);

    // Takes in what speculation has read completely.
    void collect_speculation();

    // No speculation is queued or in flight any more.
    void stop_speculation();

    std::unique_ptr<ReadBatch> read(const std::vector<ReadRequest> & requests);
    ReadRequest request(PartRef ref, uint32_t expert, uint32_t slot) const;
    const PartSlots & part(PartRef ref) const { return part_slots_[ref.block][ref.part]; }
    StoreCounters counters() const;
    std::vector<uint32_t> resident_slots() const;  // of every region, now

    // Spent so far in waiting for speculative reads that could no longer be taken back.
    int64_t waited_ns() const { return waited_ns_; }

private:
    struct Speculation {
        Speculation(IoPool & io, uint32_t block_, uint32_t expert_, uint32_t slot_)
            : block(block_), expert(expert_), slot(slot_), batch(io) {}
        uint32_t block;
        uint32_t expert;
        uint32_t slot;
        ReadBatch batch;  // one request per part
    };

    uint32_t key(uint32_t block, uint32_t expert) const { return catalog_.block(block).first_key + expert; }
    uint32_t slot_class(uint32_t block) const { return arena_.slot_class(catalog_.block(block).first_key); }
    uint32_t n_parts(uint32_t block) const { return static_cast<uint32_t>(catalog_.block(block).parts.size()); }
    bool whole(const Speculation & s) const;
    void stop(ReadBatch & batch);
    static bool whole(const LayerExperts & layer, size_t i);
    std::unique_ptr<Speculation> take_speculation(uint32_t block, uint32_t expert);
    uint32_t acquire_slot(uint32_t block, uint32_t expert);
    void load(LayerExperts & layer, const std::vector<uint32_t> & missing, uint32_t first_part);
    void stream(LayerExperts & layer, std::vector<uint32_t> missing);

    const Catalog & catalog_;
    const SlotLayout & layout_;
    IoPool & io_;
    const bool reuse_;
    Arena arena_;
    const std::vector<SlotRegion> regions_;
    const SlotMemory memory_;
    std::vector<std::vector<PartSlots>> part_slots_;  // by block and part
    std::vector<bool> first_touch_pending_;  // per slot: speculation brought it in, and nobody has needed it yet
    std::vector<std::unique_ptr<Speculation>> speculations_;
    StoreCounters counters_;
    int64_t waited_ns_ = 0;
    bool streaming_ = false;  // a layer's experts pass through all slots without a pin: none is free for speculation
};

}  // namespace moe
