#include "slot_layout.h"

#include "aligned_memory.h"

namespace moe {

SlotLayout::SlotLayout(const Catalog & catalog) {
    for (const MoeBlock & block : catalog.blocks()) {
        std::vector<PartPlace> places;
        uint64_t end = 0;
        for (const ExpertPart & part : block.parts) {
            PartPlace place;
            place.window = end;
            if (part.slice_bytes % kIoBlock == 0) {
                // All experts start at the same offset inside their first block: read in place, nothing to move.
                place.shift = part.offset % kIoBlock;
                end += align_up(place.shift + part.slice_bytes);
            } else {
                // The offset differs from expert to expert, so the bytes are moved to the front after the read.
                place.shift = 0;
                end += align_up(kIoBlock - 1 + part.slice_bytes);
            }
            places.push_back(place);
        }
        blocks_.push_back({end, block.n_expert});
        places_.push_back(std::move(places));
    }
}

}  // namespace moe
