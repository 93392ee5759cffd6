// Policies that look at the forward pass: what has been used in it, and where it stands.
#include "eviction_policies.h"
#include "slot_queues.h"

namespace moe {

namespace {

// A queue of stale and one of current experts for every block. An expert becomes current when it is brought in, kept, or
// first used in a pass; at the next pass all are stale, in the same order.
class ByPass : public EvictionPolicy {
public:
    explicit ByPass(const ArenaShape & shape)
        : n_blocks_(shape.n_blocks()), queues_(2 * shape.n_blocks(), shape), residents_(shape.n_slots()) {}

    void begin_pass() override {
        ++pass_;
        n_reached_ = 0;
        for (uint32_t block = 0; block < n_blocks_; ++block) {
            queues_.append(current(block), stale(block));
        }
    }
    void reach(uint32_t block) override { n_reached_ = block + 1; }

    void add(const Newcomer & n, Recency) override {
        residents_[n.slot] = {n.block, pass_, kNever};
        queues_.push_newest(current(n.block), n.slot);
    }
    void use(uint32_t slot) override {
        if (residents_[slot].used_in != pass_) {
            residents_[slot].used_in = pass_;
            make_current(slot);
        }
    }
    void retain(uint32_t slot) override {
        if (residents_[slot].current_in != pass_) {
            make_current(slot);
        }
    }
    void remove(uint32_t slot) override { queues_.remove(slot); }

protected:
    static uint32_t stale(uint32_t block) { return 2 * block; }
    static uint32_t current(uint32_t block) { return 2 * block + 1; }

    const uint32_t n_blocks_;
    SlotQueues queues_;
    uint32_t n_reached_ = 0;  // blocks on the left

private:
    static constexpr uint64_t kNever = UINT64_MAX;
    struct Resident {
        uint32_t block = 0;
        uint64_t current_in = kNever;  // pass
        uint64_t used_in = kNever;
    };

    void make_current(uint32_t slot) {
        residents_[slot].current_in = pass_;
        queues_.remove(slot);
        queues_.push_newest(current(residents_[slot].block), slot);
    }

    std::vector<Resident> residents_;
    uint64_t pass_ = 0;
};

class Ls final : public ByPass {
public:
    using ByPass::ByPass;
    uint32_t victim(const Request & request) const override {
        for (const auto queue : {stale, current}) {
            for (uint32_t block = 0; block < n_blocks_; ++block) {
                const uint32_t slot = queues_.oldest(queue(block), request);
                if (slot != kNoSlot) {
                    return slot;
                }
            }
        }
        return kNoSlot;
    }
};

class LsPos final : public ByPass {
public:
    using ByPass::ByPass;
    uint32_t victim(const Request & request) const override {
        uint32_t slot = last(stale, 0, n_reached_, request);
        slot = slot != kNoSlot ? slot : last(current, 0, n_reached_, request);
        slot = slot != kNoSlot ? slot : last(stale, n_reached_, n_blocks_, request);
        return slot != kNoSlot ? slot : last(current, n_reached_, n_blocks_, request);
    }

private:
    // Of blocks from `begin` to before `end`.
    uint32_t last(uint32_t (*queue)(uint32_t), uint32_t begin, uint32_t end, const Request & request) const {
        for (uint32_t block = end; block-- > begin;) {
            const uint32_t slot = queues_.oldest(queue(block), request);
            if (slot != kNoSlot) {
                return slot;
            }
        }
        return kNoSlot;
    }
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_ls(const ArenaShape & shape) { return std::make_unique<Ls>(shape); }
std::unique_ptr<EvictionPolicy> make_ls_pos(const ArenaShape & shape) { return std::make_unique<LsPos>(shape); }

}  // namespace moe
