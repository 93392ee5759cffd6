// The pager's own record of a run as JSON lines (docs/engine.md, --stats): the arena, every pass, the sums.
#pragma once

#include "call_info.h"
#include "pager.h"
#include "paging_counters.h"
#include "telemetry.h"

#include <cstdint>
#include <string>
#include <vector>

namespace moe {

class PagerStats {
public:
    // Throws Error(io), as do all that write.
    explicit PagerStats(const std::string & path);

    void arena(const PagerInfo & info, const PagerOptions & options, uint32_t top_k);

    // After a llama_decode: `now` is cumulative.
    void pass(const CallInfo & call, const PagerCounters & now);

    // `resident`: of every size class, smallest first, the slots that hold an expert.
    void close(const std::vector<uint64_t> & resident);

private:
    struct Sums {
        uint64_t passes = 0;
        uint64_t tokens = 0;
        PagerCounters counted;
    };

    LineFile file_;
    PagerCounters counted_;
    Sums prefill_;
    Sums decode_;
};

}  // namespace moe
