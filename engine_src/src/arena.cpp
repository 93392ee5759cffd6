#include "arena.h"

#include <utility>

namespace moe {

Arena::Arena(uint32_t n_slots, uint32_t n_keys) : Arena(n_slots, std::vector<uint64_t>(n_keys, 1), n_slots) {}

Arena::Arena(uint32_t n_slots, std::vector<uint64_t> costs, uint64_t capacity)
    : slots_(n_slots), slot_of_key_(costs.size(), kNone), costs_(std::move(costs)), capacity_(capacity) {
    // Taken from the back: low slots first, so that a part-filled arena touches as little memory as possible.
    for (uint32_t slot = n_slots; slot-- > 0;) {
        free_.push_back(slot);
    }
}

void Arena::touch(uint32_t slot) {
    unlink(slot);
    link_newest(slot);
}

uint32_t Arena::acquire(uint32_t key, Recency recency) {
    while (free_.empty() || used_ + costs_[key] > capacity_) {
        uint32_t victim = oldest_;
        while (victim != kNone && slots_[victim].pinned) {
            victim = slots_[victim].newer;
        }
        if (victim == kNone) {
            return kNone;
        }
        evict(victim);
    }
    const uint32_t slot = free_.back();
    free_.pop_back();
    slots_[slot].key = key;
    slot_of_key_[key] = slot;
    used_ += costs_[key];
    if (recency == Recency::newest) {
        link_newest(slot);
    } else {
        link_oldest(slot);
    }
    ++n_resident_;
    return slot;
}

void Arena::evict(uint32_t slot) {
    discard(slot);
    ++evictions_;
}

void Arena::discard(uint32_t slot) {
    unlink(slot);
    slot_of_key_[slots_[slot].key] = kNone;
    used_ -= costs_[slots_[slot].key];
    slots_[slot] = Slot{};
    free_.push_back(slot);
    --n_resident_;
}

void Arena::link_newest(uint32_t slot) {
    slots_[slot].older = newest_;
    slots_[slot].newer = kNone;
    if (newest_ != kNone) {
        slots_[newest_].newer = slot;
    } else {
        oldest_ = slot;
    }
    newest_ = slot;
}

void Arena::link_oldest(uint32_t slot) {
    slots_[slot].newer = oldest_;
    slots_[slot].older = kNone;
    if (oldest_ != kNone) {
        slots_[oldest_].older = slot;
    } else {
        newest_ = slot;
    }
    oldest_ = slot;
}

void Arena::unlink(uint32_t slot) {
    const uint32_t older = slots_[slot].older;
    const uint32_t newer = slots_[slot].newer;
    (older != kNone ? slots_[older].newer : oldest_) = newer;
    (newer != kNone ? slots_[newer].older : newest_) = older;
}

}  // namespace moe
