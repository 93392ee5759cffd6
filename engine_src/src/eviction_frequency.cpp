// Policies that count how often an expert is used. Experts keep their counts while they are not resident.
#include "eviction_policies.h"
#include "slot_ranking.h"

#include <cmath>
#include <limits>

namespace moe {

namespace {

class Lfu final : public EvictionPolicy {
public:
    explicit Lfu(const ArenaShape & shape)
        : ranking_(1, shape), uses_(shape.experts.size(), 0), keys_(shape.n_slots(), 0) {}

    void add(const Newcomer & n, Recency recency) override {
        keys_[n.slot] = n.key;
        ranking_.add(0, n.slot, recency == Recency::newest ? static_cast<double>(uses_[n.key]) : -1);
    }
    void use(uint32_t slot) override { ranking_.move(slot, static_cast<double>(++uses_[keys_[slot]])); }
    void retain(uint32_t slot) override { ranking_.move(slot, static_cast<double>(uses_[keys_[slot]])); }
    void remove(uint32_t slot) override { ranking_.remove(slot); }
    uint32_t victim(const Request & request) const override { return ranking_.least(0, request); }

private:
    SlotRankings ranking_;
    std::vector<uint64_t> uses_;  // by key
    std::vector<uint32_t> keys_;  // by slot
};

// Whose next use is expected last gives way. A block has a turn in every pass, and an expert a rate of use per turn: its
// uses, each worth half of what it was kHalfLife turns ago. Its next use is expected in 1 / rate turns, from its block's
// next turn on, which is the sooner the fewer blocks are before it.
//
// All rates of a block fade alike, so their order only changes with a use: the logarithm of the rate, less the fading
// since the block's first turn, is what its experts are ranked by.
class ReuseDistance final : public EvictionPolicy {
public:
    explicit ReuseDistance(const ArenaShape & shape)
        : rankings_(shape.n_blocks(), shape),
          turns_(shape.n_blocks(), 0),
          level_(shape.experts.size(), kNever),
          residents_(shape.n_slots()) {}

    void reach(uint32_t block) override {
        at_hand_ = block;
        ++turns_[block];
    }

    void add(const Newcomer & n, Recency recency) override {
        residents_[n.slot] = {n.key, n.block};
        rankings_.add(n.block, n.slot, recency == Recency::newest ? level_[n.key] : kNever);
    }
    void use(uint32_t slot) override {
        double & level = level_[residents_[slot].key];
        level = raised(level, residents_[slot].block);
        rankings_.move(slot, level);
    }
    void retain(uint32_t slot) override {
        rankings_.move(slot, raised(level_[residents_[slot].key], residents_[slot].block));
    }
    void remove(uint32_t slot) override { rankings_.remove(slot); }

    uint32_t victim(const Request & request) const override {
        const auto n_blocks = static_cast<uint32_t>(turns_.size());
        uint32_t found = kNoSlot;
        double longest = 0;
        double lowest = 0;
        // From the block at hand back: of equals the one that is reached last.
        for (uint32_t i = 0; i < n_blocks; ++i) {
            const uint32_t block = (at_hand_ + n_blocks - i) % n_blocks;
            const uint32_t slot = rankings_.least(block, request);
            if (slot == kNoSlot) {
                continue;
            }
            const double rate = rankings_.value(slot) - faded(block);
            const double wait = std::exp2(-rate) / kUseWeight + static_cast<double>(n_blocks - 1 - i) / n_blocks;
            // Rates too low to be told apart by their inverse are by themselves.
            if (found == kNoSlot || wait > longest || (wait == longest && rate < lowest)) {
                found = slot;
                longest = wait;
                lowest = rate;
            }
        }
        return found;
    }

private:
    // Chosen on one trace, judged on another (docs/eviction.md): between 4 and 16 little changes.
    static constexpr double kHalfLife = 8;
    // So that an expert that is used in every turn has a rate of 1: 1 - 2^(-1 / kHalfLife).
    static constexpr double kUseWeight = 0.08299595679532876;
    static constexpr double kNever = -std::numeric_limits<double>::infinity();

    struct Resident {
        uint32_t key = 0;
        uint32_t block = 0;
    };

    double faded(uint32_t block) const { return static_cast<double>(turns_[block]) / kHalfLife; }

    // By a use in this turn.
    double raised(double level, uint32_t block) const {
        return std::log2(std::exp2(level - faded(block)) + 1) + faded(block);
    }

    SlotRankings rankings_;        // one per block
    std::vector<uint32_t> turns_;  // by block
    std::vector<double> level_;    // by key
    std::vector<Resident> residents_;
    uint32_t at_hand_ = 0;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_lfu(const ArenaShape & shape) { return std::make_unique<Lfu>(shape); }
std::unique_ptr<EvictionPolicy> make_reuse_distance(const ArenaShape & shape) {
    return std::make_unique<ReuseDistance>(shape);
}

}  // namespace moe
