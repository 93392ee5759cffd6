// What a cache of a given size is made of, and when it is too small to be one.
#include "cache_shape.h"

#include "check.h"

#include <vector>

using namespace moe;

namespace {

constexpr uint64_t mib = uint64_t{1} << 20;
constexpr uint64_t slot = mib + mib / 2;

CacheShape shape(const std::vector<ExpertSize> & blocks, uint64_t bytes, uint32_t top_k, bool exact = false) {
    return shape_cache(blocks, nullptr, {bytes, exact, top_k});
}

void a_cycle_is_top_k_of_every_block() {
    // The last block, a second set of experts, has fewer than top-k.
    const std::vector<ExpertSize> blocks = {{4096, 8}, {8192, 8}, {4096, 3}};
    const TokenCycle one = shape(blocks, 0, 1).cycle;
    CHECK((one.slots == std::vector<uint64_t>{2, 1}));
    CHECK(one.bytes == 2 * 4096 + 8192);
    const TokenCycle four = shape(blocks, 0, 4).cycle;
    CHECK((four.slots == std::vector<uint64_t>{7, 4}));
    const TokenCycle all = shape(blocks, 0, 1000).cycle;
    CHECK((all.slots == std::vector<uint64_t>{11, 8}));
    CHECK(all.bytes == shape(blocks, 0, 1).whole_bytes);
}

void a_large_model_does_not_overflow() {
    const CacheShape large = shape(std::vector<ExpertSize>(1000, {uint64_t{6} << 30, 512}), UINT64_MAX, 512);
    CHECK(large.arena.n_slots() == 512000);
    CHECK(large.arena_bytes == 512000 * (uint64_t{6} << 30));
    CHECK(large.holds_cycle && large.coverage == 1);
}

// One token uses ten slots: five layers, top-2.
void a_cycle_is_held_from_its_last_slot_on() {
    const std::vector<ExpertSize> blocks(5, {slot, 8});
    CHECK(!shape(blocks, 0, 2).holds_cycle);
    CHECK(!shape(blocks, 9 * slot, 2).holds_cycle);
    CHECK(!shape(blocks, 10 * slot - 1, 2).holds_cycle);
    CHECK(shape(blocks, 10 * slot, 2).holds_cycle);
    CHECK(shape(blocks, 100 * slot, 2).holds_cycle);
    CHECK(shape(blocks, 0, 2).cycle.least_bytes == 15 * mib);
}

void the_size_that_is_recommended_holds_a_cycle() {
    for (uint64_t bytes = 4096; bytes < 40 * mib; bytes = bytes * 3 + 4096) {
        for (const uint64_t large : {bytes, bytes * 7 / 6 / 4096 * 4096 + 4096, bytes * 4}) {
            std::vector<ExpertSize> blocks(39, {bytes, 64});
            blocks.insert(blocks.end(), 8, {large, 64});
            const uint64_t least = shape(blocks, 0, 8).cycle.least_bytes;
            CHECK(shape(blocks, least, 8).holds_cycle);
            CHECK(least <= mib || least - mib < shape(blocks, 0, 8).cycle.bytes || !shape(blocks, least - mib, 8).holds_cycle);
        }
    }
}

void an_arena_is_raised_to_a_layers_needs_unless_it_is_to_be_exact() {
    const std::vector<ExpertSize> blocks = {{4096, 8}, {8192, 8}};
    CHECK((shape(blocks, 0, 3).arena.slots == std::vector<uint32_t>{0, 3}));
    CHECK((shape(blocks, 8192, 3).arena.slots == std::vector<uint32_t>{0, 3}));
    const CacheShape exact = shape(blocks, 8192 + 4096, 3, true);
    CHECK((exact.arena.slots == std::vector<uint32_t>{1, 1}));
    CHECK(exact.arena_bytes == 8192 + 4096);
    CHECK(exact.least_arena_bytes == 8192);
}

void memory_lies_as_the_slots_are_numbered() {
    const CacheShape two = shape({{4096, 8}, {8192, 8}}, 5 * 4096 + 6 * 8192, 1);
    CHECK(two.regions.size() == 2);
    CHECK(two.regions[0].slot_bytes == 4096 && two.regions[0].slots == two.arena.slots[0]);
    CHECK(two.regions[1].slot_bytes == 8192 && two.regions[1].slots == two.arena.slots[1]);
    CHECK(two.arena.experts.size() == 16 && two.arena.experts[7].slot_class == 0 && two.arena.experts[8].slot_class == 1);
    CHECK(two.arena.experts[7].block == 0 && two.arena.experts[8].block == 1);
    CHECK(two.arena_bytes == two.arena.slots[0] * 4096 + two.arena.slots[1] * 8192);
}

}  // namespace

int main() {
    check::run("a cycle is top-k of every block", a_cycle_is_top_k_of_every_block);
    check::run("a large model does not overflow", a_large_model_does_not_overflow);
    check::run("a cycle is held from its last slot on", a_cycle_is_held_from_its_last_slot_on);
    check::run("the size that is recommended holds a cycle", the_size_that_is_recommended_holds_a_cycle);
    check::run("an arena is raised to a layer's needs unless it is to be exact",
               an_arena_is_raised_to_a_layers_needs_unless_it_is_to_be_exact);
    check::run("memory lies as the slots are numbered", memory_lies_as_the_slots_are_numbered);
    return check::result();
}
