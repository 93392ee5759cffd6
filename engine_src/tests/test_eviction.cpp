// Who gives way, policy by policy: sequences worked out by hand from what docs/eviction.md says.
#include "arena.h"
#include "error.h"

#include "check.h"

#include <initializer_list>
#include <string>
#include <vector>

using moe::Arena;
using moe::ArenaShape;

namespace {

// Key 10 * b + e is expert e of block b.
ArenaShape blocks(std::vector<uint32_t> slots, uint32_t n_blocks, uint32_t large_from_block = UINT32_MAX) {
    ArenaShape shape;
    shape.slots = std::move(slots);
    for (uint32_t key = 0; key < 10 * n_blocks; ++key) {
        shape.experts.push_back({key / 10 >= large_from_block ? 1U : 0U, key / 10, 1});
    }
    return shape;
}

// A layer's turn, as the expert store takes it: hits are pinned, misses acquired and pinned, all are used in order.
void use(Arena & arena, std::initializer_list<uint32_t> keys) {
    arena.reach(*keys.begin() / 10);
    std::vector<uint32_t> slots;
    for (const bool missing : {false, true}) {
        for (const uint32_t key : keys) {
            if ((arena.find(key) == Arena::kNone) == missing) {
                slots.push_back(missing ? arena.acquire(key) : arena.find(key));
                CHECK(slots.back() != Arena::kNone);
                arena.pin(slots.back());
            }
        }
    }
    for (const uint32_t key : keys) {
        arena.touch(arena.find(key));
    }
    for (const uint32_t slot : slots) {
        arena.unpin(slot);
    }
}

bool holds(const Arena & arena, std::initializer_list<uint32_t> keys) {
    bool all = arena.n_resident() == keys.size();
    for (const uint32_t key : keys) {
        all = all && arena.find(key) != Arena::kNone;
    }
    return all;
}

bool counted(const Arena & arena, uint64_t stale_left, uint64_t stale_right, uint64_t current_left,
             uint64_t current_right) {
    const moe::EvictionCounts & e = arena.evictions();
    return e.stale_left == stale_left && e.stale_right == stale_right && e.current_left == current_left &&
           e.current_right == current_right &&
           e.total() == stale_left + stale_right + current_left + current_right;
}

// Two blocks, one expert of each a pass, three slots: the order of use is all that counts.
void lru_goes_by_the_order_of_use() {
    Arena arena(blocks({3}, 2), "lru");
    arena.begin_pass();
    use(arena, {0});
    use(arena, {10});
    arena.begin_pass();
    use(arena, {1});
    CHECK(counted(arena, 0, 0, 0, 0));
    use(arena, {11});  // 0: block 0 has been reached, and 0 was not used in this pass
    CHECK(holds(arena, {10, 1, 11}));
    CHECK(counted(arena, 1, 0, 0, 0));
    arena.begin_pass();
    use(arena, {2});  // 10: of a block to come
    CHECK(holds(arena, {1, 11, 2}));
    CHECK(counted(arena, 1, 1, 0, 0));
}

void kept_experts_are_the_last_to_go_under_lru() {
    Arena arena(blocks({3}, 2), "lru");
    arena.begin_pass();
    use(arena, {0, 1});
    use(arena, {10});
    arena.retain(arena.find(0));
    use(arena, {11});
    use(arena, {12});
    CHECK(holds(arena, {0, 11, 12}));
}

void read_ahead_is_next_to_go_under(const char * policy) {
    Arena arena(blocks({4}, 2), policy);
    arena.begin_pass();
    use(arena, {0, 1, 2});
    const uint32_t slot = arena.acquire(10, Arena::Recency::oldest);
    use(arena, {3});
    CHECK(holds(arena, {0, 1, 2, 3}));
    CHECK(counted(arena, 0, 0, 0, 1));
    // Once it is used it is like the others.
    arena.evict(arena.find(3));
    CHECK(arena.acquire(10, Arena::Recency::oldest) == slot);
    use(arena, {10});
    use(arena, {4});
    CHECK(arena.find(10) == slot && arena.find(0) == Arena::kNone);
}

// Stale before current, the first block first, and in a block in the order of becoming stale.
void ls_evicts_the_stale_of_the_first_block() {
    Arena arena(blocks({6}, 3), "ls");
    arena.begin_pass();
    use(arena, {1, 0});  // block 0, in this order
    use(arena, {10, 11});
    use(arena, {20, 21});
    arena.begin_pass();
    use(arena, {0, 2});  // stale: 1 | 10 11 | 20 21
    CHECK(holds(arena, {0, 2, 10, 11, 20, 21}));
    use(arena, {12});  // stale: 10 11 | 20 21, current 0 2
    CHECK(holds(arena, {0, 2, 12, 11, 20, 21}));
    use(arena, {22, 23});
    CHECK(holds(arena, {0, 2, 12, 21, 22, 23}));  // 11, then 20: block 2 has just been reached
    CHECK(counted(arena, 4, 0, 0, 0));
    use(arena, {24, 25});  // 21 is the last stale one; then the current of the first block, the oldest of them
    CHECK(holds(arena, {2, 12, 22, 23, 24, 25}));
    CHECK(counted(arena, 5, 0, 1, 0));
}

void ls_evicts_to_the_right_before_anything_current() {
    Arena arena(blocks({3}, 3), "ls");
    arena.begin_pass();
    use(arena, {0});
    use(arena, {10});
    use(arena, {20});
    arena.begin_pass();
    use(arena, {0});
    use(arena, {11});  // stale 10 | 20
    CHECK(holds(arena, {0, 11, 20}));
    arena.begin_pass();
    use(arena, {1});  // stale 0 | 11 | 20
    use(arena, {2});  // stale 11 | 20
    CHECK(holds(arena, {1, 2, 20}));
    CHECK(counted(arena, 2, 1, 0, 0));
}

void a_second_use_in_a_pass_changes_nothing_under(const char * policy) {
    Arena arena(blocks({3}, 2), policy);
    arena.begin_pass();
    use(arena, {10, 11, 12});
    use(arena, {10});
    use(arena, {13});
    CHECK(holds(arena, {11, 12, 13}));
}

// What is read ahead or kept counts as current.
void ls_takes_expected_experts_for_current() {
    Arena arena(blocks({4}, 3), "ls");
    arena.begin_pass();
    use(arena, {0});
    use(arena, {10});
    use(arena, {20});
    arena.begin_pass();
    use(arena, {0});  // stale 10 | 20
    arena.retain(arena.find(10));
    CHECK(arena.acquire(21, Arena::Recency::oldest) != Arena::kNone);
    use(arena, {11});  // the only stale one: 20
    CHECK(holds(arena, {0, 10, 21, 11}));
    CHECK(counted(arena, 0, 1, 0, 0));
    use(arena, {12});  // all are current: the first block
    CHECK(holds(arena, {10, 21, 11, 12}));
    use(arena, {13});
    CHECK(holds(arena, {21, 11, 12, 13}));
    CHECK(counted(arena, 0, 1, 2, 0));
    // After the pass they are stale like the others.
    arena.begin_pass();
    use(arena, {1});
    CHECK(holds(arena, {21, 12, 13, 1}));
}

// Stale left, current left, stale right, current right; the last block first.
void ls_pos_goes_by_position() {
    Arena arena(blocks({6}, 3), "ls_pos");
    arena.begin_pass();
    use(arena, {0, 1});
    use(arena, {10, 11});
    use(arena, {20, 21});
    arena.begin_pass();
    use(arena, {0});
    use(arena, {10, 12});  // stale on the left: 1 | 11; block 1 is at hand and counts: 11
    CHECK(holds(arena, {0, 1, 10, 12, 20, 21}));
    use(arena, {20, 22});  // stale 1 | - | 21
    CHECK(holds(arena, {0, 1, 10, 12, 20, 22}));
    use(arena, {23});  // 1
    CHECK(holds(arena, {0, 10, 12, 20, 22, 23}));
    CHECK(counted(arena, 3, 0, 0, 0));
    use(arena, {24});  // all are current: the last block, of which 20 became it first
    CHECK(holds(arena, {0, 10, 12, 22, 23, 24}));
    CHECK(counted(arena, 3, 0, 1, 0));
    // All are stale, at block 0 only its own on the left.
    arena.begin_pass();
    use(arena, {1});
    CHECK(holds(arena, {1, 10, 12, 22, 23, 24}));
    CHECK(counted(arena, 4, 0, 1, 0));
    use(arena, {2});  // current on the left before stale on the right
    CHECK(holds(arena, {2, 10, 12, 22, 23, 24}));
    CHECK(counted(arena, 4, 0, 2, 0));
    arena.pin(arena.find(2));
    use(arena, {3});  // with that pinned stale on the right: the last block
    CHECK(holds(arena, {2, 3, 10, 12, 23, 24}));
    CHECK(counted(arena, 4, 1, 2, 0));
}

void ls_pos_evicts_what_is_expected_last() {
    Arena arena(blocks({2}, 3), "ls_pos");
    arena.begin_pass();
    use(arena, {0});
    arena.acquire(20, Arena::Recency::oldest);
    use(arena, {1});
    CHECK(holds(arena, {1, 20}));
    arena.pin(arena.find(1));
    use(arena, {2});
    CHECK(holds(arena, {1, 2}));
    CHECK(counted(arena, 0, 0, 1, 1));
}

// Counts outlive residency; among equals recency decides.
void lfu_counts_uses() {
    Arena arena(blocks({2}, 1), "lfu");
    arena.begin_pass();
    use(arena, {0});
    use(arena, {0});
    use(arena, {1});
    use(arena, {2});  // 1: used once
    CHECK(holds(arena, {0, 2}));
    use(arena, {1});  // 2: used once; 1 now twice
    CHECK(holds(arena, {0, 1}));
    use(arena, {2});  // 0 and 1 twice each, 0 less recently
    CHECK(holds(arena, {1, 2}));
    use(arena, {0});  // 1 and 2 twice each
    CHECK(holds(arena, {2, 0}));
    CHECK(counted(arena, 0, 0, 4, 0));
}

void expecting_is_not_using_under_lfu() {
    Arena arena(blocks({2}, 1), "lfu");
    arena.begin_pass();
    use(arena, {0});
    use(arena, {1});
    arena.retain(arena.find(0));
    arena.retain(arena.find(0));
    use(arena, {2});  // 0 and 1 once each, 0 kept more recently
    CHECK(holds(arena, {0, 2}));
    use(arena, {2});
    use(arena, {3});
    CHECK(holds(arena, {2, 3}));
}

// Half-life 8 turns. After k uses in turns just behind each other an expert's rate is 1 - 2^(-k/8).
void reuse_distance_weighs_how_often_and_how_long_ago() {
    Arena arena(blocks({3}, 1), "reuse_distance");
    const auto turn = [&](uint32_t key) {
        arena.begin_pass();
        use(arena, {key});
    };
    for (int i = 0; i < 4; ++i) {
        turn(0);
    }
    turn(1);
    turn(2);
    turn(3);  // once, two turns ago, against four times, three to six turns ago
    CHECK(holds(arena, {0, 2, 3}));
    for (int i = 0; i < 24; ++i) {
        turn(2 + static_cast<uint32_t>(i) % 2);
    }
    turn(4);  // by now those uses are worth 4 * 2^(-28/8) = 0.35 at most
    CHECK(holds(arena, {2, 3, 4}));
}

// Two blocks: an expert of the one whose turn comes next is needed half a turn sooner.
void reuse_distance_keeps_what_comes_sooner() {
    Arena arena(blocks({3}, 2), "reuse_distance");
    arena.begin_pass();
    use(arena, {0});
    use(arena, {10});
    arena.begin_pass();
    use(arena, {1});  // 0 has been passed over; block 1 has had no turn since 10
    CHECK(holds(arena, {0, 1, 10}));
    use(arena, {11});  // 0 and 10 are both one turn old; block 0 is next
    CHECK(holds(arena, {0, 1, 11}));
    arena.begin_pass();
    use(arena, {2});  // 0 two turns old, 1 one turn, 11 none
    CHECK(holds(arena, {1, 2, 11}));
}

void reuse_distance_remembers_what_was_evicted() {
    Arena arena(blocks({2}, 1), "reuse_distance");
    const auto turn = [&](std::initializer_list<uint32_t> keys) {
        arena.begin_pass();
        use(arena, keys);
    };
    turn({0});
    turn({0});
    turn({0});
    turn({1, 2});
    arena.evict(arena.find(1));
    CHECK(holds(arena, {2}));
    turn({0});
    turn({3});  // 2 was used once, 0 four times
    CHECK(holds(arena, {0, 3}));
}

// Six slots and three blocks: two each.
void layer_gives_every_block_its_share() {
    Arena arena(blocks({6}, 3), "layer");
    arena.begin_pass();
    use(arena, {0, 1});
    use(arena, {10, 11});
    use(arena, {20, 21});
    arena.begin_pass();
    use(arena, {2});  // its own least recently used
    CHECK(holds(arena, {1, 2, 10, 11, 20, 21}));
    use(arena, {11});
    use(arena, {22});
    CHECK(holds(arena, {1, 2, 10, 11, 21, 22}));
    arena.begin_pass();
    use(arena, {12});
    CHECK(holds(arena, {1, 2, 11, 12, 21, 22}));
}

void layer_takes_from_the_block_that_has_most() {
    Arena arena(blocks({6}, 3), "layer");
    arena.begin_pass();
    use(arena, {0, 1, 2, 3});  // free slots are anyone's
    use(arena, {10, 11});
    use(arena, {20});
    CHECK(holds(arena, {1, 2, 3, 10, 11, 20}));
    use(arena, {21});
    CHECK(holds(arena, {2, 3, 10, 11, 20, 21}));
    use(arena, {22});  // all have their share
    CHECK(holds(arena, {2, 3, 10, 11, 21, 22}));
    // More at once than the share: then from who has most, the least recently used of equals.
    use(arena, {12, 13, 14});
    CHECK(holds(arena, {3, 12, 13, 14, 21, 22}));
}

void layer_counts_what_experts_cost() {
    ArenaShape shape = blocks({8}, 2);
    for (uint32_t key = 10; key < 20; ++key) {
        shape.experts[key].cost = 2;
    }
    shape.capacity = 8;  // four for each block: four experts of block 0, two of block 1
    Arena arena(shape, "layer");
    arena.begin_pass();
    use(arena, {0, 1, 2, 3, 4, 5});
    use(arena, {10});
    CHECK(holds(arena, {0, 1, 2, 3, 4, 5, 10}));
    use(arena, {11});
    CHECK(holds(arena, {2, 3, 4, 5, 10, 11}));
    use(arena, {12});
    CHECK(holds(arena, {2, 3, 4, 5, 11, 12}));
    use(arena, {6});
    CHECK(holds(arena, {3, 4, 5, 6, 11, 12}));
}

void read_ahead_is_next_to_go_in_its_layer() {
    Arena arena(blocks({4}, 2), "layer");
    arena.begin_pass();
    use(arena, {0, 1});
    use(arena, {10});
    arena.acquire(11, Arena::Recency::oldest);
    use(arena, {2});
    CHECK(holds(arena, {1, 2, 10, 11}));
    use(arena, {12});
    CHECK(holds(arena, {1, 2, 10, 12}));
}

// Blocks 0 and 1 are small, 2 is large: two small slots, two large ones.
void large_experts_take_large_slots_only(const std::string & policy) {
    Arena arena(blocks({2, 2}, 3, 2), policy);
    CHECK(arena.usable_slots(0) == 4 && arena.usable_slots(1) == 2);
    CHECK(arena.could_hold(4, 4, 0) && arena.could_hold(2, 2, 1) && !arena.could_hold(3, 3, 1));
    arena.begin_pass();
    use(arena, {0, 1});
    CHECK(arena.find(0) < 2 && arena.find(1) < 2);
    use(arena, {10});
    CHECK(arena.find(10) >= 2);
    CHECK(arena.n_resident(0) == 2 && arena.n_resident(1) == 1);
    use(arena, {20});
    CHECK(arena.find(20) >= 2);
    CHECK(arena.evictions().total() == 0);
    arena.pin(arena.find(20));
    use(arena, {21});  // only the slot of 10 is large enough and to be had
    CHECK(holds(arena, {0, 1, 20, 21}));
    CHECK(counted(arena, 0, 0, 1, 0));
    arena.pin(arena.find(21));
    CHECK(arena.acquire(22) == Arena::kNone);
    arena.discard(arena.find(0));
    CHECK(arena.acquire(22) == Arena::kNone);  // a free small slot is none for it
    CHECK(arena.acquire(11) < 2);
    CHECK(arena.n_resident(0) == 2 && arena.n_resident(1) == 2);
}

void pins_are_respected_by(const std::string & policy) {
    Arena arena(blocks({3}, 2), policy);
    arena.begin_pass();
    use(arena, {0, 1, 2});
    arena.pin(arena.find(0));
    arena.pin(arena.find(2));
    use(arena, {10});
    CHECK(holds(arena, {0, 2, 10}));
    arena.pin(arena.find(10));
    CHECK(arena.acquire(11) == Arena::kNone);
    arena.unpin(arena.find(0));
    CHECK(arena.acquire(11) != Arena::kNone);
    CHECK(holds(arena, {2, 10, 11}));
}

void names_are_known() {
    for (const std::string & name : moe::eviction_policy_names()) {
        CHECK(moe::make_eviction_policy(name, ArenaShape::uniform(1, 1)) != nullptr);
    }
    bool refused = false;
    try {
        moe::make_eviction_policy("fifo", ArenaShape::uniform(1, 1));
    } catch (const moe::Error & error) {
        refused = error.code() == moe::ExitCode::usage;
    }
    CHECK(refused);
}

}  // namespace

int main() {
    check::run("lru goes by the order of use", lru_goes_by_the_order_of_use);
    check::run("kept experts are the last to go under lru", kept_experts_are_the_last_to_go_under_lru);
    for (const char * policy : {"lru", "lfu", "reuse_distance"}) {
        check::run((std::string("what is read ahead is next to go: ") + policy).c_str(),
                   [&] { read_ahead_is_next_to_go_under(policy); });
    }
    check::run("ls evicts the stale of the first block", ls_evicts_the_stale_of_the_first_block);
    check::run("ls evicts to the right before anything current", ls_evicts_to_the_right_before_anything_current);
    for (const char * policy : {"ls", "ls_pos"}) {
        check::run((std::string("a second use in a pass changes nothing: ") + policy).c_str(),
                   [&] { a_second_use_in_a_pass_changes_nothing_under(policy); });
    }
    check::run("ls takes expected experts for current", ls_takes_expected_experts_for_current);
    check::run("ls_pos goes by position", ls_pos_goes_by_position);
    check::run("ls_pos evicts what is expected last", ls_pos_evicts_what_is_expected_last);
    check::run("lfu counts uses", lfu_counts_uses);
    check::run("expecting is not using under lfu", expecting_is_not_using_under_lfu);
    check::run("reuse_distance weighs how often and how long ago", reuse_distance_weighs_how_often_and_how_long_ago);
    check::run("reuse_distance keeps what comes sooner", reuse_distance_keeps_what_comes_sooner);
    check::run("reuse_distance remembers what was evicted", reuse_distance_remembers_what_was_evicted);
    check::run("layer gives every block its share", layer_gives_every_block_its_share);
    check::run("layer takes from the block that has most", layer_takes_from_the_block_that_has_most);
    check::run("what is read ahead is next to go in its layer", read_ahead_is_next_to_go_in_its_layer);
    check::run("layer counts what experts cost", layer_counts_what_experts_cost);
    for (const std::string & policy : moe::eviction_policy_names()) {
        check::run(("large experts take large slots only: " + policy).c_str(),
                   [&] { large_experts_take_large_slots_only(policy); });
        check::run(("pins are respected: " + policy).c_str(), [&] { pins_are_respected_by(policy); });
    }
    check::run("names are known, others refused", names_are_known);
    return check::result();
}
