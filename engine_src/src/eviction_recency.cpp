// Policies that know nothing but the order of use: lru, and lru by layer.
#include "eviction_policies.h"
#include "slot_queues.h"

#include <algorithm>

namespace moe {

namespace {

class Lru final : public EvictionPolicy {
public:
    explicit Lru(const ArenaShape & shape) : queue_(1, shape) {}

    void add(const Newcomer & n, Recency recency) override {
        recency == Recency::newest ? queue_.push_newest(0, n.slot) : queue_.push_oldest(0, n.slot);
    }
    void use(uint32_t slot) override {
        queue_.remove(slot);
        queue_.push_newest(0, slot);
    }
    void retain(uint32_t slot) override { use(slot); }
    void remove(uint32_t slot) override { queue_.remove(slot); }
    uint32_t victim(const Request & request) const override { return queue_.oldest(0, request); }

private:
    SlotQueues queue_;
};

// A block that has its share gives way to itself, to one that has less the block that has most. Free slots are anyone's,
// so shares differ until the arena is full. They count what experts cost, as the arena's capacity does.
class Layer final : public EvictionPolicy {
public:
    explicit Layer(const ArenaShape & shape)
        : queues_(shape.n_blocks(), shape), held_(shape.n_blocks(), 0), residents_(shape.n_slots()) {
        uint64_t dearest = 0;
        for (const ArenaShape::Expert & expert : shape.experts) {
            dearest = std::max(dearest, expert.cost);
        }
        share_ = std::min(shape.capacity, shape.n_slots() * dearest) / std::max<uint64_t>(held_.size(), 1);
    }

    void add(const Newcomer & n, Recency recency) override {
        residents_[n.slot] = {n.block, n.cost};
        held_[n.block] += n.cost;
        recency == Recency::newest ? queues_.push_newest(n.block, n.slot) : queues_.push_oldest(n.block, n.slot);
    }
    void use(uint32_t slot) override {
        queues_.remove(slot);
        queues_.push_newest(residents_[slot].block, slot);
    }
    void retain(uint32_t slot) override { use(slot); }
    void remove(uint32_t slot) override {
        held_[residents_[slot].block] -= residents_[slot].cost;
        queues_.remove(slot);
    }
    uint32_t victim(const Request & request) const override {
        if (held_[request.block] + request.cost > share_) {
            const uint32_t own = queues_.oldest(request.block, request);
            if (own != kNoSlot) {
                return own;
            }
        }
        // Of blocks that hold equally much, the one whose oldest is the oldest.
        uint32_t found = kNoSlot;
        for (uint32_t block = 0; block < held_.size(); ++block) {
            if (found != kNoSlot && held_[block] < held_[residents_[found].block]) {
                continue;
            }
            const uint32_t slot = queues_.oldest(block, request);
            if (slot != kNoSlot && (found == kNoSlot || held_[block] > held_[residents_[found].block] ||
                                    queues_.age_order(slot) < queues_.age_order(found))) {
                found = slot;
            }
        }
        return found;
    }

private:
    struct Resident {
        uint32_t block = 0;
        uint64_t cost = 0;
    };

    SlotQueues queues_;           // one per block
    std::vector<uint64_t> held_;  // cost of a block's residents
    std::vector<Resident> residents_;
    uint64_t share_ = 0;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_lru(const ArenaShape & shape) { return std::make_unique<Lru>(shape); }
std::unique_ptr<EvictionPolicy> make_layer(const ArenaShape & shape) { return std::make_unique<Layer>(shape); }

}  // namespace moe
