#include "arena_shape.h"

#include <algorithm>
#include <numeric>

namespace moe {

ArenaShape ArenaShape::uniform(uint32_t n_slots, uint32_t n_keys) {
    ArenaShape shape;
    shape.slots = {n_slots};
    shape.experts.resize(n_keys);
    return shape;
}

uint32_t ArenaShape::n_blocks() const {
    uint32_t n = 0;
    for (const Expert & expert : experts) {
        n = std::max(n, expert.block + 1);
    }
    return n;
}

uint32_t ArenaShape::first_slot(uint32_t slot_class) const {
    return std::accumulate(slots.begin(), slots.begin() + slot_class, uint32_t{0});
}

}  // namespace moe
