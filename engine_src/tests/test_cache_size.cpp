// The size of the cache: one token's cycle, the refusal below it, and --cache-mb auto.
#include "cache_size.h"

#include "check.h"

#include <string>
#include <vector>

using namespace moe;

namespace {

constexpr uint64_t mib = uint64_t{1} << 20;

// A token uses 10 slots of 1.5 MiB.
const TokenCycle cycle_of_ten = {{10}, 15 * mib, 15 * mib};

void a_refusal_names_both_sizes_and_what_to_do() {
    const std::string fixed = cliff_refusal(cycle_of_ten, {2}, 4 * mib, false);
    for (const char * words : {"--cache-mb 4 makes 2 slots (4 MiB)", "10 slots (15 MiB)", "--cache-mb 15 or more",
                               "--force-cache"}) {
        CHECK(fixed.find(words) != std::string::npos);
    }
    const std::string automatic = cliff_refusal(cycle_of_ten, {1}, 2 * mib, true);
    for (const char * words : {"--cache-mb auto makes 1 slot (2 MiB)", "10 slots (15 MiB)", "--cache-floor-mb",
                               "--force-cache"}) {
        CHECK(automatic.find(words) != std::string::npos);
    }
    CHECK(fixed.find('\n') == std::string::npos && automatic.find('\n') == std::string::npos);
}

void slots_of_two_sizes_are_told_apart() {
    const std::string line = cliff_refusal({{390, 80}, 3500 * mib, 3501 * mib}, {180, 60}, 2000 * mib, false);
    for (const char * words : {"180 + 60 slots (2000 MiB)", "390 + 80 slots (3501 MiB)", "--cache-mb 3501 or more"}) {
        CHECK(line.find(words) != std::string::npos);
    }
}

struct AutoCase {
    const char * what;
    CacheAuto request;
    uint64_t bytes;
};

// In MiB, to be read at a glance; `unknown` is an absent number.
constexpr uint64_t unknown = UINT64_MAX;

std::optional<uint64_t> maybe(uint64_t n_mib) {
    return n_mib == unknown ? std::nullopt : std::optional<uint64_t>(n_mib * mib);
}

CacheAuto request(uint64_t floor, uint64_t ceil, uint64_t experts, uint64_t available, uint64_t planned = 0,
                  uint64_t mapped = 0, uint64_t data_limit = unknown, uint64_t cgroup_left = unknown) {
    CacheAuto r;
    r.floor_bytes = floor * mib;
    r.ceil_bytes = ceil * mib;
    r.expert_bytes = experts * mib;
    r.planned_bytes = planned * mib;
    r.mapped_bytes = mapped * mib;
    r.available_bytes = maybe(available);
    r.data_limit_bytes = maybe(data_limit);
    r.cgroup_left_bytes = maybe(cgroup_left);
    return r;
}

void auto_finds_a_size() {
    const std::vector<AutoCase> table = {
        // available less floor, between the least and the cap
        {"what is left", request(1536, 0, 20000, 8000), 6464},
        {"no floor", request(0, 0, 20000, 8000), 8000},
        {"planned memory is not there to be taken", request(1536, 0, 20000, 8000, 1000), 5464},
        {"mapped weights are the floor's concern", request(1536, 0, 20000, 8000, 0, 1000), 6464},
        {"one MiB above the least", request(1536, 0, 20000, 3037), 1501},
        {"just the least", request(1536, 0, 20000, 3036), 1500},
        {"raised to the least", request(1536, 0, 20000, 3035), 1500},
        {"raised from nothing", request(1536, 0, 20000, 1000), 1500},
        {"raised when plans exceed what is available", request(1536, 0, 20000, 1000, 2000), 1500},
        {"raised when the floor exceeds everything", request(1 << 24, 0, 20000, 8000), 1500},
        // the cap: the whole model
        {"one MiB below the model", request(1536, 0, 6000, 7535), 5999},
        {"just the model", request(1536, 0, 6000, 7536), 6000},
        {"lowered to the model", request(1536, 0, 6000, 90000), 6000},
        {"a model below the least, with room", request(1536, 0, 700, 90000), 700},
        {"a model below the least, without", request(1536, 0, 700, 1000), 700},
        // the cap: the ceiling
        {"lowered to the ceiling", request(1536, 4000, 20000, 8000), 4000},
        {"a ceiling above what is left", request(1536, 7000, 20000, 8000), 6464},
        {"a ceiling above the model", request(1536, 7000, 6000, 90000), 6000},
        {"a ceiling below the least, with room", request(1536, 100, 20000, 8000), 100},
        {"a ceiling below the least, without", request(1536, 100, 20000, 1000), 100},
        // nobody knows what is available
        {"unknown", request(1536, 0, 20000, unknown), 1500},
        {"unknown, whatever is planned", request(1536, 0, 20000, unknown, 4000), 1500},
        {"unknown, small model", request(1536, 0, 700, unknown), 700},
        {"unknown, ceiling", request(1536, 900, 20000, unknown), 900},
        // RLIMIT_DATA
        {"a limit that leaves enough", request(1536, 0, 20000, 8000, 500, 0, 9000), 5964},
        {"a limit that leaves less than is available", request(1536, 0, 20000, 8000, 500, 0, 4000), 3500},
        {"a limit below the least", request(1536, 0, 20000, 8000, 500, 0, 1200), 700},
        {"a limit where available is unknown", request(1536, 0, 20000, unknown, 500, 0, 1200), 700},
        {"a limit does not count mapped weights", request(1536, 0, 20000, unknown, 500, 600, 1200), 700},
        {"a limit that just fits the least", request(1536, 0, 20000, 1000, 500, 0, 2000), 1500},
        {"a limit that plans use up", request(1536, 0, 20000, 8000, 500, 0, 500), 0},
        {"a limit that plans exceed", request(1536, 0, 20000, 8000, 500, 0, 400), 0},
        {"a limit raises nothing", request(1536, 0, 700, 8000, 500, 0, 4000), 700},
        // a cgroup, whose reserve is 32 MiB
        {"a cgroup that leaves enough", request(1536, 0, 20000, 8000, 500, 100, unknown, 8000), 5964},
        {"a cgroup below the least", request(1536, 0, 20000, 1000, 500, 100, unknown, 1000), 368},
        {"a cgroup that is full", request(1536, 0, 20000, 600, 500, 100, unknown, 600), 0},
        {"a cgroup where available is unknown", request(1536, 0, 20000, unknown, 0, 0, unknown, 1032), 1000},
        {"no floor, so a cgroup bounds", request(0, 0, 20000, 8000, 500, 100, unknown, 8000), 7368},
        {"the smaller of two limits: RLIMIT_DATA", request(0, 0, 20000, 9000, 0, 0, 700, 8000), 700},
        {"the smaller of two limits: cgroup", request(0, 0, 20000, 9000, 0, 0, 9000, 732), 700},
    };
    for (const AutoCase & row : table) {
        const uint64_t got = auto_cache_bytes(row.request);
        if (got != row.bytes * mib) {
            std::fprintf(stderr, "  %s: expected %llu MiB, got %llu bytes\n", row.what,
                         static_cast<unsigned long long>(row.bytes), static_cast<unsigned long long>(got));
        }
        CHECK(got == row.bytes * mib);
    }
}

}  // namespace

int main() {
    check::run("a refusal names both sizes and what to do", a_refusal_names_both_sizes_and_what_to_do);
    check::run("slots of two sizes are told apart", slots_of_two_sizes_are_told_apart);
    check::run("auto finds a size", auto_finds_a_size);
    return check::result();
}
