// Slots in the order of a number: what policies by frequency consist of.
#pragma once

#include "eviction.h"

#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

namespace moe {

// Several rankings; a slot is in one at most. Least first; among equals the one that was placed first. Like SlotQueues
// each keeps the slot classes apart.
class SlotRankings {
public:
    SlotRankings(uint32_t n_rankings, const ArenaShape & shape);

    void add(uint32_t ranking, uint32_t slot, double value);
    void move(uint32_t slot, double value);  // behind its equals
    void remove(uint32_t slot);

    // The least slot that will do, kNoSlot: none.
    uint32_t least(uint32_t ranking, const EvictionPolicy::Request & request) const;
    double value(uint32_t slot) const { return places_[slot].value; }

private:
    struct Place {
        double value = 0;
        uint64_t order = 0;
        uint32_t slot = 0;
        bool operator<(const Place & other) const {
            return std::tie(value, order) < std::tie(other.value, other.order);
        }
    };
    using Sorted = std::set<Place>;

    uint32_t n_classes_;
    std::vector<uint32_t> class_of_slot_;
    std::vector<Place> places_;            // by slot
    std::vector<uint32_t> list_of_slot_;   // index into sorted_
    std::vector<Sorted> sorted_;           // by ranking and class
    uint64_t last_order_ = 0;
};

}  // namespace moe
