// What the pager counts.
#pragma once

#include "eviction.h"

#include <cstdint>
#include <optional>

namespace moe {

// Cumulative since open(). Reading it between decodes is race-free.
struct PagerCounters {
    uint64_t requests = 0;    // unique (layer, expert) per batch and layer
    uint64_t hits = 0;
    uint64_t misses = 0;
    uint64_t evictions = 0;
    EvictionCounts eviction_groups;  // the same, divided
    uint64_t reads = 0;
    uint64_t read_bytes = 0;  // asked from storage: aligned windows under direct I/O; speculative reads included
    struct Foresight {
        uint64_t read_bytes = 0;  // of speculation
        uint64_t experts = 0;     // that it brought in whole
        uint64_t useful = 0;      // of these, those that a layer then needed
        uint64_t retained = 0;    // predicted experts that were resident, and were kept
    };
    struct Drops {
        uint64_t routed = 0;  // routings that were examined
        uint64_t dropped = 0;
    };
    std::optional<Foresight> foresight;  // while something predicts
    std::optional<Drops> drops;          // while dropping is on
    uint64_t resident_bytes = 0;         // now: of slots that hold an expert
    double io_ms = 0;         // wall time with at least one read in flight
    double stall_ms = 0;      // wall time during which compute waited for reads
    double manage_ms = 0;     // slot bookkeeping
};

}  // namespace moe
