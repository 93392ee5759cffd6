// Long random runs of the arena under every policy, against a model that scans everything it has for every eviction.
#include "arena.h"

#include "check.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <random>
#include <string>
#include <tuple>
#include <vector>

using moe::Arena;
using moe::ArenaShape;
using moe::Recency;

namespace {

struct Resident {
    uint32_t key = 0;
    uint32_t block = 0;
    uint32_t slot_class = 0;
    uint64_t cost = 0;
    bool pinned = false;
    bool current = false;     // used, brought in or kept in this pass
    bool used = false;        // used in this pass
    bool unproven = false;    // read ahead, and neither used nor kept since
    double level = 0;         // logarithm of uses that fade, as they were worth at turn 0
    int64_t recency = 0;      // of use, of being kept, or of coming
    int64_t entered = 0;      // when it last became current, stale ones included
};

// Every policy is an order of the residents.
class Model {
public:
    Model(ArenaShape shape, std::string policy)
        : shape_(std::move(shape)), policy_(std::move(policy)), uses_(shape_.experts.size(), 0),
          level_(shape_.experts.size(), -INFINITY), turns_(shape_.n_blocks(), 0) {}

    void begin_pass() {
        n_reached = 0;
        for (Resident & r : residents) {
            r.current = r.used = false;
        }
    }
    void reach(uint32_t block) {
        n_reached = block + 1;
        at_hand_ = block;
        ++turns_[block];
    }

    bool acquire(uint32_t key, Recency recency) {
        const ArenaShape::Expert & e = shape_.experts[key];
        for (;;) {
            uint32_t free = e.slot_class;
            while (free < shape_.n_classes() && n_in_class(free) == shape_.slots[free]) {
                ++free;
            }
            const bool has_slot = free < shape_.n_classes();
            uint64_t cost = e.cost;
            for (const Resident & r : residents) {
                cost += r.cost;
            }
            if (has_slot && cost <= shape_.capacity) {
                ++now_;
                Resident r;
                r.key = key;
                r.block = e.block;
                r.slot_class = free;
                r.cost = e.cost;
                r.current = true;
                r.unproven = recency == Recency::oldest;
                r.recency = recency == Recency::oldest ? -now_ : now_;
                r.entered = now_;
                r.level = r.unproven ? -INFINITY : level_[key];
                residents.push_back(r);
                return true;
            }
            std::vector<Resident *> able;
            for (Resident & r : residents) {
                if (!r.pinned && (has_slot || r.slot_class >= e.slot_class)) {
                    able.push_back(&r);
                }
            }
            const auto larger = [&](const Resident * r) { return !has_slot && r->slot_class > e.slot_class; };
            if (!std::all_of(able.begin(), able.end(), larger)) {
                able.erase(std::remove_if(able.begin(), able.end(), larger), able.end());
            }
            if (able.empty()) {
                return false;
            }
            evict(victim(able, e)->key);
        }
    }

    void use(uint32_t key) {
        Resident & r = at(key);
        ++now_;
        ++uses_[key];
        if (!r.used) {
            r.entered = now_;
        }
        r.used = r.current = true;
        r.unproven = false;
        r.recency = now_;
        r.level = level_[key] = raised(key, r.block);
    }
    void retain(uint32_t key) {
        Resident & r = at(key);
        ++now_;
        if (!r.current) {
            r.entered = now_;
        }
        r.current = true;
        r.unproven = false;
        r.recency = now_;
        r.level = raised(key, r.block);
    }
    void evict(uint32_t key) {
        const Resident & r = at(key);
        const bool left = r.block < n_reached;
        ++(r.current ? left ? evictions.current_left : evictions.current_right
                     : left ? evictions.stale_left : evictions.stale_right);
        discard(key);
    }
    void discard(uint32_t key) { residents.erase(residents.begin() + (&at(key) - residents.data())); }
    Resident & at(uint32_t key) {
        return *std::find_if(residents.begin(), residents.end(), [&](const Resident & r) { return r.key == key; });
    }
    size_t n_in_class(uint32_t slot_class) const {
        return static_cast<size_t>(std::count_if(residents.begin(), residents.end(),
                                                 [&](const Resident & r) { return r.slot_class == slot_class; }));
    }

    std::vector<Resident> residents;
    uint32_t n_reached = 0;
    moe::EvictionCounts evictions;

private:
    uint64_t held(uint32_t block) const {
        uint64_t cost = 0;
        for (const Resident & r : residents) {
            cost += r.block == block ? r.cost : 0;
        }
        return cost;
    }

    double raised(uint32_t key, uint32_t block) const {
        const double faded = turns_[block] / 8.0;
        return std::log2(std::exp2(level_[key] - faded) + 1) + faded;
    }

    Resident * victim(std::vector<Resident *> able, const ArenaShape::Expert & wants) {
        using Rank = std::tuple<double, double, double, double, double>;
        if (policy_ == "layer") {
            std::vector<Resident *> own;
            std::copy_if(able.begin(), able.end(), std::back_inserter(own),
                         [&](const Resident * r) { return r->block == wants.block; });
            uint64_t dearest = 0;
            for (const ArenaShape::Expert & e : shape_.experts) {
                dearest = std::max(dearest, e.cost);
            }
            const uint64_t share = std::min(shape_.capacity, shape_.n_slots() * dearest) / shape_.n_blocks();
            if (!own.empty() && held(wants.block) + wants.cost > share) {
                able = own;
            }
        }
        const auto rank = [&](const Resident & r) -> Rank {
            const bool left = r.block < n_reached;
            const double block = r.block;
            const auto recency = static_cast<double>(r.unproven ? -r.recency : r.recency);
            const auto entered = static_cast<double>(r.entered);
            if (policy_ == "ls") {
                return {r.current, block, entered, 0, 0};
            }
            if (policy_ == "ls_pos") {
                return {(left ? 0 : 2) + (r.current ? 1 : 0), -block, entered, 0, 0};
            }
            if (policy_ == "lfu") {
                return {r.unproven ? -1 : static_cast<double>(uses_[r.key]), recency, 0, 0, 0};
            }
            if (policy_ == "layer") {
                return {-static_cast<double>(held(r.block)), static_cast<double>(r.recency), 0, 0, 0};
            }
            if (policy_ == "reuse_distance") {
                const uint32_t n = shape_.n_blocks();
                const double ahead = (r.block + n - at_hand_ - 1) % n;
                const double rate = r.level - turns_[r.block] / 8.0;
                const double wait = std::exp2(-rate) / (1 - std::exp2(-1 / 8.0)) + ahead / n;
                return {-wait, rate, -ahead, r.level, recency};
            }
            return {static_cast<double>(r.recency), 0, 0, 0, 0};
        };
        return *std::min_element(able.begin(), able.end(),
                                 [&](const Resident * a, const Resident * b) { return rank(*a) < rank(*b); });
    }

    ArenaShape shape_;
    std::string policy_;
    std::vector<uint64_t> uses_;
    std::vector<double> level_;
    std::vector<uint32_t> turns_;
    uint32_t at_hand_ = 0;
    int64_t now_ = 0;
};

bool same(const Arena & arena, const ArenaShape & shape, const Model & model) {
    bool ok = arena.n_resident() == model.residents.size();
    for (const Resident & r : model.residents) {
        const uint32_t slot = arena.find(r.key);
        ok = ok && slot != Arena::kNone && arena.pinned(slot) == r.pinned &&
             slot >= shape.first_slot(r.slot_class) && slot < shape.first_slot(r.slot_class + 1);
    }
    for (uint32_t c = 0; c < shape.n_classes(); ++c) {
        ok = ok && arena.n_resident(c) == model.n_in_class(c);
    }
    const moe::EvictionCounts & a = arena.evictions();
    const moe::EvictionCounts & b = model.evictions;
    return ok && a.stale_left == b.stale_left && a.stale_right == b.stale_right && a.current_left == b.current_left &&
           a.current_right == b.current_right;
}

struct Setting {
    const char * name;
    std::vector<uint32_t> slots;
    uint64_t capacity;
};

void agrees(const std::string & policy, const Setting & setting, uint32_t seed) {
    constexpr uint32_t kBlocks = 5;
    constexpr uint32_t kExperts = 12;
    ArenaShape shape;
    shape.slots = setting.slots;
    shape.capacity = setting.capacity;
    const auto n_classes = static_cast<uint32_t>(setting.slots.size());
    for (uint32_t key = 0; key < kBlocks * kExperts; ++key) {
        const uint32_t block = key / kExperts;
        const uint64_t cost = setting.capacity == UINT64_MAX ? 1 : 1 + block % 3;
        shape.experts.push_back({block * n_classes / kBlocks, block, cost});
    }
    Arena arena(shape, policy);
    Model model(shape, policy);
    std::mt19937 random(seed);
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    const auto bring = [&](uint32_t key, Recency recency) {
        const bool there = arena.acquire(key, recency) != Arena::kNone;
        CHECK(there == model.acquire(key, recency));
        return there;
    };

    for (int pass = 0; pass < 400 && check::failures() == 0; ++pass) {
        arena.begin_pass();
        model.begin_pass();
        for (uint32_t block = 0; block < kBlocks; ++block) {
            arena.reach(block);
            model.reach(block);
            std::vector<uint32_t> pinned;
            for (uint32_t i = 0; i < 3; ++i) {
                const uint32_t key = block * kExperts + std::min(below(kExperts), below(kExperts));
                if (arena.find(key) == Arena::kNone && !bring(key, Recency::newest)) {
                    continue;
                }
                if (!model.at(key).pinned) {
                    pinned.push_back(key);
                }
                arena.pin(arena.find(key));
                model.at(key).pinned = true;
                arena.touch(arena.find(key));
                model.use(key);
            }
            // Reading ahead, keeping, failing.
            const uint32_t key = below(kBlocks * kExperts);
            const uint32_t slot = arena.find(key);
            if (slot == Arena::kNone) {
                if (below(3) == 0) {
                    bring(key, Recency::oldest);
                }
            } else if (below(2) == 0) {
                arena.retain(slot);
                model.retain(key);
            } else if (!arena.pinned(slot)) {
                if (below(2) == 0) {
                    arena.discard(slot);
                    model.discard(key);
                } else {
                    arena.evict(slot);
                    model.evict(key);
                }
            }
            CHECK(same(arena, shape, model));
            for (const uint32_t k : pinned) {
                if (below(16) != 0) {  // some stay pinned for a while, as by a speculative read
                    arena.unpin(arena.find(k));
                    model.at(k).pinned = false;
                }
            }
        }
        for (Resident & r : model.residents) {
            if (r.pinned && below(4) == 0) {
                arena.unpin(arena.find(r.key));
                r.pinned = false;
            }
        }
    }
    CHECK(arena.evictions().total() > 100);
}

}  // namespace

int main() {
    const Setting settings[] = {{"one class", {14}, UINT64_MAX},
                                {"two classes", {9, 7}, UINT64_MAX},
                                {"three classes", {6, 5, 6}, UINT64_MAX},
                                {"costs", {24}, 28},
                                {"costs and classes", {12, 10}, 26}};
    for (const std::string & policy : moe::eviction_policy_names()) {
        for (const Setting & setting : settings) {
            check::run((policy + ", " + setting.name).c_str(), [&] {
                for (uint32_t seed = 1; seed <= 3; ++seed) {
                    agrees(policy, setting, seed);
                }
            });
        }
    }
    return check::result();
}
