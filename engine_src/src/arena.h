// Which expert sits in which slot: residency, slot classes and pins. Pure bookkeeping; it owns no expert's bytes.
#pragma once

#include "arena_shape.h"
#include "eviction.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace moe {

// An expert sits in a slot of its class or above. Who gives way when there is none is the policy's choice.
class Arena {
public:
    static constexpr uint32_t kNone = kNoSlot;
    using Recency = moe::Recency;

    // The policy must have been made for this shape.
    Arena(ArenaShape shape, std::unique_ptr<EvictionPolicy> policy);
    Arena(const ArenaShape & shape, const std::string & policy);
    // One slot class, one block, least recently used.
    Arena(uint32_t n_slots, uint32_t n_keys);

    uint32_t n_slots() const { return static_cast<uint32_t>(slots_.size()); }
    uint32_t n_resident() const { return n_resident_; }
    const EvictionCounts & evictions() const { return evictions_; }

    // Of one class: its slots, and those of them that hold an expert.
    uint32_t n_slots(uint32_t slot_class) const { return shape_.slots[slot_class]; }
    uint32_t n_resident(uint32_t slot_class) const { return resident_by_class_[slot_class]; }
    // Of this class and above: the slots that its experts can be in.
    uint32_t usable_slots(uint32_t slot_class) const { return n_slots() - first_slot(slot_class); }
    uint32_t first_slot(uint32_t slot_class) const { return first_slots_[slot_class]; }
    uint32_t slot_class(uint32_t key) const { return shape_.experts[key].slot_class; }

    uint32_t find(uint32_t key) const { return slot_of_key_[key]; }  // kNone: not resident
    bool resident(uint32_t slot) const { return slots_[slot].key != kNone; }
    bool pinned(uint32_t slot) const { return pinned_[slot]; }

    // A forward pass begins; it has reached the block. Blocks come in ascending order within a pass.
    void begin_pass();
    void reach(uint32_t block);

    // Marks a resident expert as just used; as one that is expected to be used.
    void touch(uint32_t slot);
    void retain(uint32_t slot);

    // Gives `key` a slot: a free one of its own class, else a free larger one, else that of an expert without a pin,
    // which is evicted, from its own class if possible. kNone when the pinned leave no room. `key` must not be
    // resident. That it is used, touch() says.
    uint32_t acquire(uint32_t key, Recency recency = Recency::newest);

    // Whether so many experts of a class, which cost `cost` together, would fit if nothing else were resident.
    bool could_hold(uint64_t n_experts, uint64_t cost, uint32_t slot_class = 0) const {
        return n_experts <= usable_slots(slot_class) && cost <= shape_.capacity;
    }
    uint64_t cost(uint32_t key) const { return shape_.experts[key].cost; }

    // A pinned slot is never given away.
    void pin(uint32_t slot) { pinned_[slot] = true; }
    void unpin(uint32_t slot) { pinned_[slot] = false; }

    // The expert loses its slot to someone else's need: counted.
    void evict(uint32_t slot);

    // The slot becomes free because its content is of no use (a failed read, no reuse wanted): not counted.
    void discard(uint32_t slot);

private:
    struct Slot {
        uint32_t key = kNone;
        uint32_t slot_class = 0;
        uint64_t current_in = 0;  // the last pass in which it was used, brought in or kept
    };

    uint32_t free_class(uint32_t slot_class) const;
    uint32_t victim_for(const ArenaShape::Expert & expert) const;
    uint32_t victim_in(const ArenaShape::Expert & expert, uint32_t first_class, uint32_t last_class) const;

    const ArenaShape shape_;
    std::unique_ptr<EvictionPolicy> policy_;
    std::vector<uint32_t> first_slots_;  // by class
    std::vector<Slot> slots_;
    std::vector<bool> pinned_;
    std::vector<uint32_t> slot_of_key_;
    std::vector<std::vector<uint32_t>> free_;  // by class
    std::vector<uint32_t> resident_by_class_;
    uint64_t used_ = 0;
    uint32_t n_resident_ = 0;
    uint64_t pass_ = 0;
    uint32_t n_reached_ = 0;  // blocks, in this pass
    EvictionCounts evictions_;
};

}  // namespace moe
