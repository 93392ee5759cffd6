#include "slot_ranking.h"

#include <algorithm>

namespace moe {

SlotRanking::SlotRanking(const ArenaShape & shape) : places_(shape.n_slots()), sorted_(shape.n_classes()) {
    for (uint32_t c = 0; c < shape.n_classes(); ++c) {
        class_of_slot_.insert(class_of_slot_.end(), shape.slots[c], c);
    }
}

void SlotRanking::add(uint32_t slot, double value) {
    places_[slot] = {value, ++last_order_, slot};
    sorted_[class_of_slot_[slot]].insert(places_[slot]);
}

void SlotRanking::move(uint32_t slot, double value) {
    std::set<Place> & sorted = sorted_[class_of_slot_[slot]];
    auto node = sorted.extract(places_[slot]);  // as it is used: no allocation per move
    places_[slot] = {value, ++last_order_, slot};
    node.value() = places_[slot];
    sorted.insert(std::move(node));
}

void SlotRanking::remove(uint32_t slot) { sorted_[class_of_slot_[slot]].erase(places_[slot]); }

uint32_t SlotRanking::least(const EvictionPolicy::Request & request) const {
    const Place * found = nullptr;
    for (uint32_t c = request.first_class; c <= request.last_class; ++c) {
        const auto it = std::find_if(sorted_[c].begin(), sorted_[c].end(),
                                     [&](const Place & place) { return !request.pinned[place.slot]; });
        if (it != sorted_[c].end() && (found == nullptr || *it < *found)) {
            found = &*it;
        }
    }
    return found != nullptr ? found->slot : kNoSlot;
}

}  // namespace moe
