// Slots in the order of a number: what policies by frequency consist of.
#pragma once

#include "eviction.h"

#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

namespace moe {

// Least first; among equals the one that was placed first. Like SlotQueues it keeps the slot classes apart.
class SlotRanking {
public:
    explicit SlotRanking(const ArenaShape & shape);

    void add(uint32_t slot, double value);
    void move(uint32_t slot, double value);  // behind its equals
    void remove(uint32_t slot);

    // The least slot that will do, kNoSlot: none.
    uint32_t least(const EvictionPolicy::Request & request) const;

private:
    struct Place {
        double value = 0;
        uint64_t order = 0;
        uint32_t slot = 0;
        bool operator<(const Place & other) const {
            return std::tie(value, order) < std::tie(other.value, other.order);
        }
    };

    std::vector<uint32_t> class_of_slot_;
    std::vector<Place> places_;           // by slot
    std::vector<std::set<Place>> sorted_;  // by class
    uint64_t last_order_ = 0;
};

}  // namespace moe
