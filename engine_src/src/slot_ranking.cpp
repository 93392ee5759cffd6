#include "slot_ranking.h"

#include <algorithm>
#include <utility>

namespace moe {

SlotRankings::SlotRankings(uint32_t n_rankings, const ArenaShape & shape)
    : n_classes_(shape.n_classes()),
      places_(shape.n_slots()),
      list_of_slot_(shape.n_slots(), 0),
      sorted_(n_rankings * n_classes_) {
    for (uint32_t c = 0; c < n_classes_; ++c) {
        class_of_slot_.insert(class_of_slot_.end(), shape.slots[c], c);
    }
}

void SlotRankings::add(uint32_t ranking, uint32_t slot, double value) {
    places_[slot] = {value, ++last_order_, slot};
    list_of_slot_[slot] = ranking * n_classes_ + class_of_slot_[slot];
    sorted_[list_of_slot_[slot]].insert(places_[slot]);
}

void SlotRankings::move(uint32_t slot, double value) {
    Sorted & sorted = sorted_[list_of_slot_[slot]];
    auto node = sorted.extract(places_[slot]);  // as it is used: no allocation per move
    places_[slot] = {value, ++last_order_, slot};
    node.value() = places_[slot];
    sorted.insert(std::move(node));
}

void SlotRankings::remove(uint32_t slot) { sorted_[list_of_slot_[slot]].erase(places_[slot]); }

uint32_t SlotRankings::least(uint32_t ranking, const EvictionPolicy::Request & request) const {
    const Place * found = nullptr;
    for (uint32_t c = request.first_class; c <= request.last_class; ++c) {
        const Sorted & sorted = sorted_[ranking * n_classes_ + c];
        const auto it = std::find_if(sorted.begin(), sorted.end(),
                                     [&](const Place & place) { return !request.pinned[place.slot]; });
        if (it != sorted.end() && (found == nullptr || *it < *found)) {
            found = &*it;
        }
    }
    return found != nullptr ? found->slot : kNoSlot;
}

}  // namespace moe
