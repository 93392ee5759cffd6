#include "arena.h"

#include <utility>

namespace moe {

Arena::Arena(uint32_t n_slots, uint32_t n_keys) : Arena(ArenaShape::uniform(n_slots, n_keys), "lru") {}

Arena::Arena(const ArenaShape & shape, const std::string & policy)
    : Arena(shape, make_eviction_policy(policy, shape)) {}

Arena::Arena(ArenaShape shape, std::unique_ptr<EvictionPolicy> policy)
    : shape_(std::move(shape)),
      policy_(std::move(policy)),
      slots_(shape_.n_slots()),
      pinned_(shape_.n_slots(), false),
      slot_of_key_(shape_.experts.size(), kNone),
      free_(shape_.n_classes()),
      resident_by_class_(shape_.n_classes(), 0) {
    for (uint32_t c = 0; c < shape_.n_classes(); ++c) {
        first_slots_.push_back(shape_.first_slot(c));
        // Taken from the back: low slots first, so that a part-filled arena touches as little memory as possible.
        for (uint32_t slot = shape_.first_slot(c + 1); slot-- > shape_.first_slot(c);) {
            slots_[slot].slot_class = c;
            free_[c].push_back(slot);
        }
    }
}

void Arena::begin_pass() {
    ++pass_;
    n_reached_ = 0;
    policy_->begin_pass();
}

void Arena::reach(uint32_t block) {
    n_reached_ = block + 1;
    policy_->reach(block);
}

void Arena::touch(uint32_t slot) {
    slots_[slot].current_in = pass_;
    policy_->use(slot);
}

void Arena::retain(uint32_t slot) {
    slots_[slot].current_in = pass_;
    policy_->retain(slot);
}

// The smallest from this one on that has a free slot; n_classes: none.
uint32_t Arena::free_class(uint32_t slot_class) const {
    while (slot_class < shape_.n_classes() && free_[slot_class].empty()) {
        ++slot_class;
    }
    return slot_class;
}

// A small expert takes a larger slot that is free, but drives nobody out of one as long as a slot of its own class will
// do: large experts have no other place, and cost more to read again.
uint32_t Arena::victim_for(const ArenaShape::Expert & expert) const {
    const uint32_t victim = victim_in(expert, expert.slot_class, expert.slot_class);
    const uint32_t last_class = shape_.n_classes() - 1;
    return victim != kNone || expert.slot_class == last_class ? victim
                                                              : victim_in(expert, expert.slot_class + 1, last_class);
}

uint32_t Arena::victim_in(const ArenaShape::Expert & expert, uint32_t first_class, uint32_t last_class) const {
    return policy_->victim({expert.block, expert.cost, first_class, last_class, pinned_});
}

uint32_t Arena::acquire(uint32_t key, Recency recency) {
    const ArenaShape::Expert & expert = shape_.experts[key];
    uint32_t slot_class = free_class(expert.slot_class);
    while (slot_class == shape_.n_classes() || used_ + expert.cost > shape_.capacity) {
        // Where only the capacity is exhausted, any resident's leaving helps.
        const uint32_t victim =
            slot_class == shape_.n_classes() ? victim_for(expert) : victim_in(expert, 0, shape_.n_classes() - 1);
        if (victim == kNone) {
            return kNone;
        }
        evict(victim);
        slot_class = free_class(expert.slot_class);
    }
    const uint32_t slot = free_[slot_class].back();
    free_[slot_class].pop_back();
    slots_[slot].key = key;
    slots_[slot].current_in = pass_;
    slot_of_key_[key] = slot;
    used_ += expert.cost;
    policy_->add({slot, key, expert.block, expert.cost}, recency);
    ++n_resident_;
    ++resident_by_class_[slot_class];
    return slot;
}

void Arena::evict(uint32_t slot) {
    const bool current = slots_[slot].current_in == pass_;
    const bool left = shape_.experts[slots_[slot].key].block < n_reached_;
    ++(current ? left ? evictions_.current_left : evictions_.current_right
               : left ? evictions_.stale_left : evictions_.stale_right);
    discard(slot);
}

void Arena::discard(uint32_t slot) {
    policy_->remove(slot);
    const uint32_t key = slots_[slot].key;
    slot_of_key_[key] = kNone;
    used_ -= shape_.experts[key].cost;
    slots_[slot].key = kNone;
    pinned_[slot] = false;
    free_[slots_[slot].slot_class].push_back(slot);
    --n_resident_;
    --resident_by_class_[slots_[slot].slot_class];
}

}  // namespace moe
