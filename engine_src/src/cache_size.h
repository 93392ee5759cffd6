// How large the expert cache should be, and when it is too small to be one. Pure arithmetic, no look at the machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace moe {

// What one token uses: top-k experts of every MoE block, or all of a block that has fewer.
struct TokenCycle {
    std::vector<uint64_t> slots;  // of each size class that the cache counts in
    uint64_t bytes = 0;           // that these take
    uint64_t least_bytes = 0;     // the smallest cache in whole MiB that holds them
};

uint64_t mebibytes_up(uint64_t bytes);

// The LRU cliff: layers are used in a fixed order, so what was used longest ago is just what is needed next, and a
// cache below one token's cycle evicts an expert before its layer comes round again. (The last few slots below the
// cycle, less than one layer's top-k, can still hit what that layer's own last pass left.) Returns the line that
// refuses a cache of `slots` per class that does not hold a cycle (exit code memory).
std::string cliff_refusal(const TokenCycle & cycle, const std::vector<uint32_t> & slots, uint64_t cache_bytes,
                          bool cache_auto);

// Everything that --cache-mb auto depends on.
struct CacheAuto {
    uint64_t floor_bytes = 0;   // left to the system
    uint64_t ceil_bytes = 0;    // 0: none
    uint64_t expert_bytes = 0;  // a slot for every expert of the model

    // Anonymous memory that the run will take beside the cache: dense weights held there, KV cache, buffers.
    uint64_t planned_bytes = 0;
    // Weights that stay in the page cache, which a cgroup charges and RLIMIT_DATA does not.
    uint64_t mapped_bytes = 0;

    std::optional<uint64_t> available_bytes;    // of the machine and the cgroup, now
    std::optional<uint64_t> data_limit_bytes;   // RLIMIT_DATA, from zero
    std::optional<uint64_t> cgroup_left_bytes;  // limit less usage
};

// Available memory less the floor, raised to 1500 MiB and lowered to the whole model or the ceiling. When nobody knows
// what is available, 1500 MiB or all of it. Under a limit never more than the limit leaves, even where that is below
// 1500 MiB: an allocation beyond it fails, or kills the process.
//
// Anonymous dense weights are not yet allocated when the size is chosen, so the memory they are about to take still
// counts as available. It is subtracted here (accounts of this rule differ): a cache on top of them would otherwise
// exceed what is there by just their size.
uint64_t auto_cache_bytes(const CacheAuto & request);

}  // namespace moe
