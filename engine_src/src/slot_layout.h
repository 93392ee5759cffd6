// Where the parts of an expert stand inside a slot. One stride for all slots, so that any expert fits any slot
// and a matmul can address slot s as base + s * stride.
#pragma once

#include "catalog.h"

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

    uint64_t stride() const { return stride_; }
    const PartPlace & place(PartRef ref) const { return places_[ref.block][ref.part]; }

private:
    std::vector<std::vector<PartPlace>> places_;
    uint64_t stride_ = 0;
};

}  // namespace moe
