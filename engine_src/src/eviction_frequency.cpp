// Policies that count how often an expert is used. Experts keep their counts while they are not resident.
#include "eviction_policies.h"
#include "slot_ranking.h"

namespace moe {

namespace {

class Lfu final : public EvictionPolicy {
public:
    explicit Lfu(const ArenaShape & shape)
        : ranking_(shape), uses_(shape.experts.size(), 0), keys_(shape.n_slots(), 0) {}

    void add(const Newcomer & n, Recency recency) override {
        keys_[n.slot] = n.key;
        ranking_.add(n.slot, recency == Recency::newest ? static_cast<double>(uses_[n.key]) : -1);
    }
    void use(uint32_t slot) override {
        ranking_.move(slot, static_cast<double>(++uses_[keys_[slot]]));
    }
    void retain(uint32_t slot) override { ranking_.move(slot, static_cast<double>(uses_[keys_[slot]])); }
    void remove(uint32_t slot) override { ranking_.remove(slot); }
    uint32_t victim(const Request & request) const override { return ranking_.least(request); }

private:
    SlotRanking ranking_;
    std::vector<uint64_t> uses_;  // by key
    std::vector<uint32_t> keys_;  // by slot
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_lfu(const ArenaShape & shape) { return std::make_unique<Lfu>(shape); }

}  // namespace moe
