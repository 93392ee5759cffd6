// Who gives way when the arena is full: one small interface, a policy for every way to choose. docs/eviction.md says
// what each policy means, and what it was measured to do.
#pragma once

#include "arena_shape.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace moe {

constexpr uint32_t kNoSlot = UINT32_MAX;

// oldest: it is brought in ahead of its use, and the next to give way until somebody needs it.
enum class Recency { newest, oldest };

// Evictions by what was known of the expert. Stale: not used in this forward pass; current: used in it, or brought in or
// kept for it. Left: of a block that the pass has reached, the one at hand included; right: of one still to come.
struct EvictionCounts {
    uint64_t stale_left = 0;
    uint64_t stale_right = 0;
    uint64_t current_left = 0;
    uint64_t current_right = 0;

    uint64_t total() const { return stale_left + stale_right + current_left + current_right; }
    EvictionCounts & operator+=(const EvictionCounts & other);
    EvictionCounts operator-(const EvictionCounts & other) const;
};

// Keeps an order of the slots that hold an expert. The arena tells it everything that happens.
class EvictionPolicy {
public:
    // An expert that has got a slot.
    struct Newcomer {
        uint32_t slot;
        uint32_t key;
        uint32_t block;
        uint64_t cost;
    };

    // For whom a slot is wanted, and which will do: without a pin, and of one of these classes.
    struct Request {
        uint32_t block;
        uint64_t cost;
        uint32_t first_class;
        uint32_t last_class;
        const std::vector<bool> & pinned;
    };

    virtual ~EvictionPolicy() = default;

    virtual void begin_pass() {}
    virtual void reach(uint32_t /*block*/) {}

    // Is no use yet: use() follows when a layer needs it.
    virtual void add(const Newcomer & newcomer, Recency recency) = 0;
    virtual void use(uint32_t slot) = 0;
    // It is expected to be used.
    virtual void retain(uint32_t slot) = 0;
    virtual void remove(uint32_t slot) = 0;

    // The slot to be given up, kNoSlot: none will do.
    virtual uint32_t victim(const Request & request) const = 0;
};

// All names that make_eviction_policy() knows; the first is the default.
const std::vector<std::string> & eviction_policy_names();

// Throws Error(usage) for any other name.
std::unique_ptr<EvictionPolicy> make_eviction_policy(const std::string & name, const ArenaShape & shape);

}  // namespace moe
