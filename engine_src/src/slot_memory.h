// The arena's memory: the slots of each size class lie side by side, one class after the other, so that within a class a
// matmul can address slot s as base + s * stride.
#pragma once

#include "aligned_memory.h"
#include "slot_layout.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moe {

// Slots of one size.
struct SlotRegion {
    uint32_t slots = 0;
    uint64_t slot_bytes = 0;
};

// A part (one matrix) of whatever the slots of a region hold.
struct PartRange {
    uint32_t first = 0;  // slots first to end - 1
    uint32_t end = 0;
    uint64_t stride = 0;
    std::byte * weights = nullptr;  // in slot `first`

    bool has(uint32_t slot) const { return slot >= first && slot < end; }
    std::byte * at(uint32_t slot) const { return weights + (slot - first) * stride; }
};

// Of all slots, in their order.
using PartSlots = std::vector<PartRange>;

class SlotMemory {
public:
    // `commit`: take the memory now, not when slots are first used. Throws Error(memory).
    SlotMemory(const std::vector<SlotRegion> & regions, bool commit);

    std::byte * slot(uint32_t slot) const;
    PartSlots part(const PartPlace & place) const;

private:
    AlignedMemory memory_;
    PartSlots regions_;  // of the slots' first byte
};

}  // namespace moe
