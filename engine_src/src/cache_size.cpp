#include "cache_size.h"

#include <algorithm>

namespace moe {

namespace {

constexpr uint64_t mebibyte = uint64_t{1} << 20;

// That of the streaming engine this rule comes from, so that both choose the same size.
constexpr uint64_t auto_least = 1500 * mebibyte;

// A cgroup also charges what no plan counts: page tables (2 MiB for each GiB of cache), kernel stacks, the program's
// own pages. Matters only when a limit leaves less than about auto_least; above that the floor is left anyway.
constexpr uint64_t cgroup_reserve = 32 * mebibyte;

uint64_t less(uint64_t bytes, uint64_t taken) { return bytes - std::min(bytes, taken); }

// "180 + 60 slots (1944 MiB)", smallest class first.
template <typename Count>
std::string slots_and_mib(const std::vector<Count> & slots, uint64_t mib) {
    std::string text;
    for (const Count n : slots) {
        text += (text.empty() ? "" : " + ") + std::to_string(n);
    }
    return text + (text == "1" ? " slot (" : " slots (") + std::to_string(mib) + " MiB)";
}

}  // namespace

uint64_t mebibytes_up(uint64_t bytes) { return (bytes + mebibyte - 1) / mebibyte; }

std::string cliff_refusal(const TokenCycle & cycle, const std::vector<uint32_t> & slots, uint64_t cache_bytes,
                          bool cache_auto) {
    const uint64_t given_mib = cache_bytes / mebibyte;
    const uint64_t least_mib = mebibytes_up(cycle.least_bytes);
    const std::string given = cache_auto ? "--cache-mb auto" : "--cache-mb " + std::to_string(given_mib);
    const std::string remedy =
        cache_auto ? "free memory, lower --cache-floor-mb or raise --cache-ceil-mb or a memory limit; or give "
                     "--cache-mb 0, or --cache-mb N with --force-cache"
                   : "give --cache-mb " + std::to_string(least_mib) + " or more, 0 for no cache, or add --force-cache";
    return given + " makes " + slots_and_mib(slots, given_mib) + ", below the " +
           slots_and_mib(cycle.slots, least_mib) +
           " that one token uses, so experts would be evicted before they are used again: " + remedy;
}

uint64_t auto_cache_bytes(const CacheAuto & request) {
    const uint64_t cap =
        request.ceil_bytes == 0 ? request.expert_bytes : std::min(request.expert_bytes, request.ceil_bytes);
    const uint64_t least = std::min(auto_least, cap);
    uint64_t bytes = least;
    if (request.available_bytes) {
        const uint64_t spare = less(less(*request.available_bytes, request.planned_bytes), request.floor_bytes);
        bytes = std::clamp(spare, least, cap);
    }
    if (request.data_limit_bytes) {
        bytes = std::min(bytes, less(*request.data_limit_bytes, request.planned_bytes));
    }
    if (request.cgroup_left_bytes) {
        const uint64_t others = request.planned_bytes + request.mapped_bytes + cgroup_reserve;
        bytes = std::min(bytes, less(*request.cgroup_left_bytes, others));
    }
    return bytes;
}

}  // namespace moe
