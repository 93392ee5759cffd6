#include "slot_memory.h"

#include <algorithm>

namespace moe {

namespace {

uint64_t total_bytes(const std::vector<SlotRegion> & regions) {
    uint64_t bytes = 0;
    for (const SlotRegion & region : regions) {
        bytes += region.slots * region.slot_bytes;
    }
    return bytes;
}

}  // namespace

SlotMemory::SlotMemory(const std::vector<SlotRegion> & regions, bool commit) : memory_(total_bytes(regions)) {
    if (commit) {
        memory_.commit();
    }
    std::byte * begin = memory_.data();
    uint32_t first = 0;
    for (const SlotRegion & region : regions) {
        if (region.slots > 0) {
            regions_.push_back({first, first + region.slots, region.slot_bytes, begin});
        }
        begin += region.slots * region.slot_bytes;
        first += region.slots;
    }
}

std::byte * SlotMemory::slot(uint32_t slot) const {
    return std::find_if(regions_.begin(), regions_.end(), [&](const PartRange & r) { return r.has(slot); })->at(slot);
}

PartSlots SlotMemory::part(const PartPlace & place) const {
    PartSlots slots = regions_;
    for (PartRange & range : slots) {
        range.weights += place.window + place.shift;
    }
    return slots;
}

}  // namespace moe
