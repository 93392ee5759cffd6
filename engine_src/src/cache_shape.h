// What a cache of a given size is made of. Pure arithmetic: from the model's experts, or those of a recorded trace.
#pragma once

#include "arena_shape.h"
#include "cache_size.h"
#include "slot_classes.h"
#include "slot_memory.h"

#include <cstdint>
#include <vector>

namespace moe {

class ForcedRoutes;

struct CacheRequest {
    uint64_t bytes = 0;
    // The arena takes these bytes and no more, be it too small for a layer's top-k; else it is raised to that.
    bool exact = false;
    uint32_t top_k = 0;
};

struct CacheShape {
    // In the size classes that the cache counts in. With a trace that gives the bytes of experts, not of slots, these are
    // what experts cost, and the cache's are its capacity.
    ArenaShape arena;
    std::vector<SlotRegion> regions;  // the memory for these slots
    std::vector<ExpertSize> classes;  // the model's own, for the record
    uint64_t arena_bytes = 0;
    uint64_t least_arena_bytes = 0;  // one expert of any size
    double coverage = 0;             // share, 0 to 1, of all experts' bytes that can be resident at once

    // In the bytes that the cache was asked for: of slots, or of the traced model's experts.
    uint64_t whole_bytes = 0;  // all experts
    TokenCycle cycle;
    bool holds_cycle = false;
};

// `blocks`: what an expert of each block takes in a slot, and how many there are. `forced`: nullptr for none.
CacheShape shape_cache(const std::vector<ExpertSize> & blocks, const ForcedRoutes * forced, CacheRequest request);

}  // namespace moe
