#include "slot_queues.h"

namespace moe {

SlotQueues::SlotQueues(uint32_t n_queues, const ArenaShape & shape)
    : n_slots_(shape.n_slots()), n_classes_(shape.n_classes()), nodes_(n_slots_ + n_queues * n_classes_) {
    for (uint32_t c = 0; c < n_classes_; ++c) {
        class_of_slot_.insert(class_of_slot_.end(), shape.slots[c], c);
    }
    for (uint32_t node = n_slots_; node < nodes_.size(); ++node) {
        nodes_[node].older = nodes_[node].newer = node;
    }
}

void SlotQueues::push_newest(uint32_t queue, uint32_t slot) {
    const uint32_t list = head_for(queue, slot);
    link(slot, nodes_[list].older, list);
    nodes_[slot].order = ++last_order_;
}

void SlotQueues::push_oldest(uint32_t queue, uint32_t slot) {
    const uint32_t list = head_for(queue, slot);
    link(slot, list, nodes_[list].newer);
    nodes_[slot].order = --first_order_;
}

void SlotQueues::remove(uint32_t slot) {
    const Node & node = nodes_[slot];
    nodes_[node.older].newer = node.newer;
    nodes_[node.newer].older = node.older;
}

void SlotQueues::append(uint32_t from, uint32_t to) {
    for (uint32_t c = 0; c < n_classes_; ++c) {
        Node & source = nodes_[head(from, c)];
        if (source.newer == head(from, c)) {
            continue;
        }
        Node & target = nodes_[head(to, c)];
        nodes_[target.older].newer = source.newer;
        nodes_[source.newer].older = target.older;
        nodes_[source.older].newer = head(to, c);
        target.older = source.older;
        source.older = source.newer = head(from, c);
    }
}

uint32_t SlotQueues::oldest(uint32_t queue, const EvictionPolicy::Request & request) const {
    uint32_t found = kNoSlot;
    for (uint32_t c = request.first_class; c <= request.last_class; ++c) {
        const uint32_t list = head(queue, c);
        uint32_t slot = nodes_[list].newer;
        while (slot != list && request.pinned[slot]) {
            slot = nodes_[slot].newer;
        }
        if (slot != list && (found == kNoSlot || age_order(slot) < age_order(found))) {
            found = slot;
        }
    }
    return found;
}

void SlotQueues::link(uint32_t node, uint32_t older, uint32_t newer) {
    nodes_[node].older = older;
    nodes_[node].newer = newer;
    nodes_[older].newer = node;
    nodes_[newer].older = node;
}

}  // namespace moe
