#include "slot_classes.h"

#include <algorithm>
#include <map>

namespace moe {

namespace {

uint32_t fewest(uint64_t a, uint64_t b) { return static_cast<uint32_t>(std::min(a, b)); }

}  // namespace

SlotClasses::SlotClasses(const std::vector<ExpertSize> & blocks) {
    std::map<uint64_t, uint32_t> by_size;
    for (const ExpertSize & block : blocks) {
        by_size[block.slot_bytes] += block.experts;
    }
    for (const auto & [bytes, experts] : by_size) {
        sizes_.push_back({bytes, experts});
    }
    while (sizes_.size() > kMost) {
        const auto wasted = [&](size_t i) { return sizes_[i].experts * (sizes_[i + 1].slot_bytes - sizes_[i].slot_bytes); };
        size_t cheapest = 0;
        for (size_t i = 1; i + 1 < sizes_.size(); ++i) {
            cheapest = wasted(i) < wasted(cheapest) ? i : cheapest;
        }
        sizes_[cheapest + 1].experts += sizes_[cheapest].experts;
        sizes_.erase(sizes_.begin() + static_cast<ptrdiff_t>(cheapest));
    }
    for (const ExpertSize & block : blocks) {
        const auto fits = [&](const ExpertSize & size) { return size.slot_bytes >= block.slot_bytes; };
        class_of_block_.push_back(
            static_cast<uint32_t>(std::find_if(sizes_.begin(), sizes_.end(), fits) - sizes_.begin()));
    }
}

uint64_t SlotClasses::bytes(const std::vector<uint32_t> & slots) const {
    uint64_t bytes = 0;
    for (size_t c = 0; c < sizes_.size(); ++c) {
        bytes += slots[c] * sizes_[c].slot_bytes;
    }
    return bytes;
}

uint64_t SlotClasses::whole_bytes() const {
    uint64_t bytes = 0;
    for (const ExpertSize & size : sizes_) {
        bytes += size.experts * size.slot_bytes;
    }
    return bytes;
}

std::vector<uint32_t> SlotClasses::split(uint64_t arena_bytes, uint32_t least_large) const {
    std::vector<uint32_t> slots(count());
    uint64_t left = std::min(arena_bytes, whole_bytes());
    const double share = static_cast<double>(left) / static_cast<double>(whole_bytes());
    for (size_t c = count(); c-- > 0;) {
        const ExpertSize & size = sizes_[c];
        uint64_t wanted = c == 0 ? size.experts : static_cast<uint64_t>(share * size.experts);
        if (c + 1 == count()) {
            wanted = std::max<uint64_t>(wanted, least_large);
        }
        slots[c] = fewest(std::min<uint64_t>(wanted, size.experts), left / size.slot_bytes);
        left -= slots[c] * size.slot_bytes;
    }
    // The smallest class may have all it can use by now.
    for (size_t c = 1; c < count(); ++c) {
        const uint32_t more = fewest(sizes_[c].experts - slots[c], left / sizes_[c].slot_bytes);
        slots[c] += more;
        left -= more * sizes_[c].slot_bytes;
    }
    return slots;
}

bool SlotClasses::hold(const std::vector<uint32_t> & slots, const std::vector<uint64_t> & experts) const {
    uint64_t room = 0;  // in this class and above
    uint64_t need = 0;
    for (size_t c = count(); c-- > 0;) {
        room += slots[c];
        need += experts[c];
        if (need > room) {
            return false;
        }
    }
    return true;
}

double SlotClasses::coverage(const std::vector<uint32_t> & slots) const {
    uint64_t held = 0;
    uint64_t spare = 0;  // slots of larger classes that these have no expert for
    for (size_t c = count(); c-- > 0;) {
        const uint64_t room = slots[c] + spare;
        const uint64_t experts = std::min<uint64_t>(room, sizes_[c].experts);
        held += experts * sizes_[c].slot_bytes;
        spare = room - experts;
    }
    return static_cast<double>(held) / static_cast<double>(whole_bytes());
}

}  // namespace moe
