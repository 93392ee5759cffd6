// Sizes of slots found from a model, and the split of an arena over them.
#include "slot_classes.h"

#include "check.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

using namespace moe;

namespace {

constexpr double gib = 1024.0 * 1024.0 * 1024.0;

// The model of the published pager: 39 layers of Q4_K experts, 8 of BF16, 256 experts a layer, top-10.
constexpr uint64_t small_bytes = 5308416;
constexpr uint64_t large_bytes = 18874368;
constexpr uint32_t top_k = 10;

SlotClasses published() {
    std::vector<ExpertSize> blocks(39, {small_bytes, 256});
    blocks.insert(blocks.end(), 8, {large_bytes, 256});
    return SlotClasses(blocks);
}

void classes_are_found_from_the_sizes() {
    const SlotClasses classes = published();
    CHECK(classes.count() == 2);
    CHECK(classes.sizes()[0].slot_bytes == small_bytes && classes.sizes()[0].experts == 39 * 256);
    CHECK(classes.largest().slot_bytes == large_bytes && classes.largest().experts == 8 * 256);
    CHECK(classes.class_of(0) == 0 && classes.class_of(38) == 0 && classes.class_of(39) == 1 && classes.class_of(46) == 1);
    CHECK(classes.whole_bytes() == 91653931008);
    const SlotClasses one(std::vector<ExpertSize>(3, {4096, 8}));
    CHECK(one.count() == 1 && one.class_of(2) == 0);
}

// What is published of the sweep: the arena in GiB, to the digits given; 60 + 180 slots at 4 GiB, 804 in all at 8 GiB,
// and the large slots' share of the bytes, 42.0 to 42.2 % from 8 GiB on.
void the_published_arenas_split_as_published() {
    const SlotClasses classes = published();
    struct Level {
        double arena_gib;
        double digit_gib;
    };
    const Level levels[] = {{1.945, 0.001}, {5.69, 0.01}, {13.70, 0.01}, {29.69, 0.01}, {57.70, 0.01}};
    std::vector<std::vector<uint32_t>> splits;
    for (const Level & level : levels) {
        const auto slots = classes.split(static_cast<uint64_t>(level.arena_gib * gib), 6 * top_k);
        const auto bytes = static_cast<double>(classes.bytes(slots));
        CHECK(std::abs(bytes / gib - level.arena_gib) <= level.digit_gib);
        const double large_share = slots[1] * static_cast<double>(large_bytes) / bytes;
        CHECK(level.arena_gib < 2 ? std::abs(large_share - 0.54) < 0.005 : large_share >= 0.420 && large_share <= 0.422);
        CHECK(std::abs(classes.coverage(slots) - bytes / 91653931008.0) < 1e-12);
        splits.push_back(slots);
    }
    CHECK(splits[0][1] == 60 && splits[0][0] == 180);
    const uint32_t at_8_gib = splits[1][0] + splits[1][1];
    CHECK(at_8_gib >= 803 && at_8_gib <= 805);
    // 470 experts are one token's cycle: below it at 4 GiB (published hit rate 0), above from 8 GiB on.
    const std::vector<uint64_t> cycle = {39 * top_k, 8 * top_k};
    CHECK(!classes.hold(splits[0], cycle));
    for (size_t i = 1; i < splits.size(); ++i) {
        CHECK(classes.hold(splits[i], cycle));
    }
}

// From the budgets instead: what is left of 8 to 64 GiB after the reserve and the published second term of 0.30 to 0.31.
void the_published_budgets_give_the_published_arenas() {
    const SlotClasses classes = published();
    struct Level {
        double budget_gib;
        double reserve_gib;
        double arena_gib;
    };
    for (const Level & level : {Level{8, 2, 5.69}, Level{16, 2, 13.70}, Level{32, 2, 29.69}, Level{64, 6, 57.70}}) {
        const auto published_slots = classes.split(static_cast<uint64_t>(level.arena_gib * gib), 6 * top_k);
        const auto slots =
            classes.split(static_cast<uint64_t>((level.budget_gib - level.reserve_gib - 0.305) * gib), 6 * top_k);
        for (size_t c = 0; c < 2; ++c) {
            // The arena is published to 0.01 GiB, which is two small slots.
            const double rounding = 0.005 * gib / static_cast<double>(classes.sizes()[c].slot_bytes);
            CHECK(std::abs(static_cast<double>(slots[c]) - published_slots[c]) <= 1 + rounding);
        }
    }
}

void small_experts_take_larger_slots_into_account() {
    const SlotClasses classes({{10, 4}, {30, 2}});
    CHECK(classes.hold({0, 3}, {2, 1}));   // small ones sit in large slots
    CHECK(!classes.hold({9, 0}, {2, 1}));  // a large one does not fit a small slot
    CHECK(std::abs(classes.coverage({0, 2}) - 0.6) < 1e-12);
    CHECK(std::abs(classes.coverage({4, 2}) - 1) < 1e-12);
    CHECK(classes.coverage({0, 0}) == 0);
}

void a_tight_arena_is_all_large() {
    const SlotClasses classes({{10, 100}, {30, 50}});
    CHECK((classes.split(95, 6) == std::vector<uint32_t>{0, 3}));
    CHECK((classes.split(29, 6) == std::vector<uint32_t>{2, 0}));
    CHECK((classes.split(200, 6) == std::vector<uint32_t>{2, 6}));
}

void similar_sizes_are_joined() {
    const SlotClasses classes({{100, 10}, {200, 10}, {300, 10}, {310, 10}, {400, 10}, {310, 5}});
    CHECK(classes.count() == SlotClasses::kMost);
    CHECK(classes.sizes()[2].slot_bytes == 310 && classes.sizes()[2].experts == 25);
    CHECK(classes.class_of(2) == 2 && classes.class_of(5) == 2 && classes.class_of(4) == 3);
}

void any_split_stays_within_its_bytes() {
    std::mt19937 random(4);
    for (int round = 0; round < 2000; ++round) {
        std::vector<ExpertSize> blocks(1 + random() % 6);
        for (ExpertSize & block : blocks) {
            block = {4096 * (1 + random() % 64), 1 + static_cast<uint32_t>(random() % 64)};
        }
        const SlotClasses classes(blocks);
        const uint64_t arena = random() % (classes.whole_bytes() + classes.whole_bytes() / 4);
        const auto slots = classes.split(arena, 1 + random() % 32);
        CHECK(classes.bytes(slots) <= arena);
        for (size_t c = 0; c < classes.count(); ++c) {
            CHECK(slots[c] <= classes.sizes()[c].experts);
            // Nothing that would still fit is left out.
            CHECK(slots[c] == classes.sizes()[c].experts || arena - classes.bytes(slots) < classes.sizes()[c].slot_bytes);
        }
        CHECK(arena < classes.whole_bytes() || classes.bytes(slots) == classes.whole_bytes());
        CHECK(arena < classes.largest().slot_bytes || slots.back() > 0);
        const double coverage = classes.coverage(slots);
        CHECK(coverage >= 0 && coverage <= 1);
    }
}

}  // namespace

int main() {
    check::run("classes are found from the sizes", classes_are_found_from_the_sizes);
    check::run("the published arenas split as published", the_published_arenas_split_as_published);
    check::run("the published budgets give the published arenas", the_published_budgets_give_the_published_arenas);
    check::run("small experts take larger slots into account", small_experts_take_larger_slots_into_account);
    check::run("a tight arena is all large", a_tight_arena_is_all_large);
    check::run("similar sizes are joined", similar_sizes_are_joined);
    check::run("any split stays within its bytes", any_split_stays_within_its_bytes);
    return check::result();
}
