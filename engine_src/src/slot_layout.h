// Where the parts of an expert stand inside a slot.
#pragma once

#include "catalog.h"
#include "slot_classes.h"

#include <cstdint>
#include <vector>

namespace moe {

struct PartPlace {
    uint64_t window = 0;  // byte in the slot where the read window starts, block-aligned
    uint64_t shift = 0;   // the weights start at window + shift, the same for every expert
};

class SlotLayout {
public:
    explicit SlotLayout(const Catalog & catalog);

    const std::vector<ExpertSize> & blocks() const { return blocks_; }
    const PartPlace & place(PartRef ref) const { return places_[ref.block][ref.part]; }

private:
    std::vector<std::vector<PartPlace>> places_;
    std::vector<ExpertSize> blocks_;
};

}  // namespace moe
