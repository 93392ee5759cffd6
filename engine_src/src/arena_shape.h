// What an arena consists of: slots in classes of size, and the experts that may sit in them.
#pragma once

#include <cstdint>
#include <vector>

namespace moe {

struct ArenaShape {
    struct Expert {
        uint32_t slot_class = 0;  // the smallest that it fits into
        uint32_t block = 0;       // blocks are numbered in the order in which a pass reaches them
        uint64_t cost = 1;
    };

    std::vector<uint32_t> slots;     // how many of each class, smallest class first; numbered class by class
    std::vector<Expert> experts;     // by key
    uint64_t capacity = UINT64_MAX;  // what the residents may cost together

    // One class, one block.
    static ArenaShape uniform(uint32_t n_slots, uint32_t n_keys);

    uint32_t n_classes() const { return static_cast<uint32_t>(slots.size()); }
    uint32_t n_blocks() const;
    uint32_t first_slot(uint32_t slot_class) const;
    uint32_t n_slots() const { return first_slot(n_classes()); }
};

}  // namespace moe
