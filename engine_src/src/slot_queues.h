// Queues of slots, oldest first, in which any slot can be moved in constant time: what policies by recency consist of.
#pragma once

#include "eviction.h"

#include <cstdint>
#include <vector>

namespace moe {

// A slot is in one queue at most. Inside, each queue has a list per slot class, so that who needs a large slot does not
// walk past the small ones.
class SlotQueues {
public:
    SlotQueues(uint32_t n_queues, const ArenaShape & shape);

    void push_newest(uint32_t queue, uint32_t slot);
    void push_oldest(uint32_t queue, uint32_t slot);
    void remove(uint32_t slot);

    // Everything in `from` is then in `to`, in its order. All of `to` must be older.
    void append(uint32_t from, uint32_t to);

    // The oldest slot that will do, kNoSlot: none.
    uint32_t oldest(uint32_t queue, const EvictionPolicy::Request & request) const;

    // Orders slots of different queues: the older has the smaller one.
    int64_t age_order(uint32_t slot) const { return nodes_[slot].order; }

private:
    // A node per slot, and one for every list: the lists are rings through their own node.
    struct Node {
        uint32_t older = kNoSlot;
        uint32_t newer = kNoSlot;
        int64_t order = 0;
    };

    uint32_t head(uint32_t queue, uint32_t slot_class) const { return n_slots_ + queue * n_classes_ + slot_class; }
    uint32_t head_for(uint32_t queue, uint32_t slot) const { return head(queue, class_of_slot_[slot]); }
    void link(uint32_t node, uint32_t older, uint32_t newer);

    uint32_t n_slots_;
    uint32_t n_classes_;
    std::vector<uint32_t> class_of_slot_;
    std::vector<Node> nodes_;
    int64_t first_order_ = 0;
    int64_t last_order_ = 0;
};

}  // namespace moe
