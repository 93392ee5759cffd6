// Which expert sits in which slot: residency, recency and pins. Pure bookkeeping; it owns no expert's bytes.
#pragma once

#include <cstdint>
#include <vector>

namespace moe {

// Least recently used of everything that is not pinned gives way, across all layers.
class Arena {
public:
    static constexpr uint32_t kNone = UINT32_MAX;
    enum class Recency { newest, oldest };

    // Keys are 0 .. n_keys - 1, one per expert of the model.
    Arena(uint32_t n_slots, uint32_t n_keys);

    // The same, where the residents' costs must not add up to more than `capacity` either. Key k costs costs[k]. For
    // experts that stand for others, of different sizes: those of a recorded trace.
    Arena(uint32_t n_slots, std::vector<uint64_t> costs, uint64_t capacity);

    uint32_t n_slots() const { return static_cast<uint32_t>(slots_.size()); }
    uint32_t n_resident() const { return n_resident_; }
    uint64_t evictions() const { return evictions_; }

    uint32_t find(uint32_t key) const { return slot_of_key_[key]; }  // kNone: not resident
    bool resident(uint32_t slot) const { return slots_[slot].key != kNone; }
    bool pinned(uint32_t slot) const { return slots_[slot].pinned; }

    // Marks a resident expert as just used.
    void touch(uint32_t slot);

    // Gives `key` a slot: a free one, else that of the least recently used expert without a pin, which
    // is evicted. kNone when the pinned leave no room. `key` must not be resident. `oldest`: it is the next to give way.
    uint32_t acquire(uint32_t key, Recency recency = Recency::newest);

    // Whether experts that cost `cost` together would fit if nothing else were resident.
    bool could_hold(uint64_t n_experts, uint64_t cost) const {
        return n_experts <= slots_.size() && cost <= capacity_;
    }
    uint64_t cost(uint32_t key) const { return costs_[key]; }

    // A pinned slot is never given away.
    void pin(uint32_t slot) { slots_[slot].pinned = true; }
    void unpin(uint32_t slot) { slots_[slot].pinned = false; }

    // The expert loses its slot to someone else's need: counted.
    void evict(uint32_t slot);

    // The slot becomes free because its content is of no use (a failed read, no reuse wanted): not counted.
    void discard(uint32_t slot);

private:
    struct Slot {
        uint32_t key = kNone;
        uint32_t older = kNone;  // neighbours in order of use
        uint32_t newer = kNone;
        bool pinned = false;
    };

    void link_newest(uint32_t slot);
    void link_oldest(uint32_t slot);
    void unlink(uint32_t slot);

    std::vector<Slot> slots_;
    std::vector<uint32_t> slot_of_key_;
    std::vector<uint64_t> costs_;
    uint64_t capacity_;
    uint64_t used_ = 0;
    std::vector<uint32_t> free_;
    uint32_t oldest_ = kNone;
    uint32_t newest_ = kNone;
    uint32_t n_resident_ = 0;
    uint64_t evictions_ = 0;
};

}  // namespace moe
