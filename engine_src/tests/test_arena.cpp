#include "arena.h"

#include "check.h"

#include <algorithm>
#include <set>
#include <vector>

using moe::Arena;

namespace {

void least_recently_used_gives_way() {
    Arena arena(2, 10);
    const uint32_t a = arena.acquire(1);
    const uint32_t b = arena.acquire(2);
    arena.touch(a);
    CHECK(arena.acquire(3) == b);
    CHECK(arena.find(1) == a);
    CHECK(arena.find(2) == Arena::kNone);
    CHECK(arena.find(3) == b);
    CHECK(arena.evictions().total() == 1);
    CHECK(arena.n_resident() == 2);
}

void pinned_slots_are_never_given_away() {
    Arena arena(2, 10);
    const uint32_t a = arena.acquire(1);
    const uint32_t b = arena.acquire(2);
    arena.pin(a);
    CHECK(arena.acquire(3) == b);
    arena.pin(b);
    CHECK(arena.acquire(4) == Arena::kNone);
    CHECK(arena.find(1) == a);
    CHECK(arena.find(3) == b);
    arena.unpin(a);
    CHECK(arena.acquire(4) == a);
}

void discarding_frees_without_counting() {
    Arena arena(3, 10);
    arena.acquire(1);
    const uint32_t b = arena.acquire(2);
    arena.acquire(3);
    arena.pin(b);
    arena.discard(b);
    CHECK(arena.evictions().total() == 0);
    CHECK(arena.n_resident() == 2);
    CHECK(!arena.resident(b));
    CHECK(!arena.pinned(b));
    CHECK(arena.acquire(4) == b);
    CHECK(arena.evictions().total() == 0);
}

void evicting_counts() {
    Arena arena(2, 10);
    arena.evict(arena.acquire(7));
    CHECK(arena.evictions().total() == 1);
    CHECK(arena.n_resident() == 0);
    CHECK(arena.find(7) == Arena::kNone);
}

// Against a model that is slow and obvious: a list of keys, newest last.
void agrees_with_a_plain_list() {
    constexpr uint32_t kSlots = 5;
    constexpr uint32_t kKeys = 13;
    Arena arena(kSlots, kKeys);
    std::vector<uint32_t> list;
    uint64_t evictions = 0;
    uint32_t state = 12345;
    for (int step = 0; step < 20000; ++step) {
        state = state * 1664525U + 1013904223U;
        const uint32_t key = (state >> 16) % kKeys;
        const auto it = std::find(list.begin(), list.end(), key);
        const bool discard = (state >> 8) % 17 == 0;
        if (it != list.end()) {
            const uint32_t slot = arena.find(key);
            CHECK(slot != Arena::kNone);
            list.erase(it);
            if (discard) {
                arena.discard(slot);
            } else {
                arena.touch(slot);
                list.push_back(key);
            }
        } else {
            CHECK(arena.find(key) == Arena::kNone);
            if (list.size() == kSlots) {
                list.erase(list.begin());
                ++evictions;
            }
            list.push_back(key);
            CHECK(arena.acquire(key) < kSlots);
        }
        CHECK(arena.n_resident() == list.size());
        CHECK(arena.evictions().total() == evictions);
    }
    std::set<uint32_t> slots;
    for (const uint32_t key : list) {
        slots.insert(arena.find(key));
    }
    CHECK(slots.size() == list.size());
    CHECK(slots.count(Arena::kNone) == 0);
}

}  // namespace

int main() {
    check::run("the least recently used expert gives way", least_recently_used_gives_way);
    check::run("pinned slots are never given away", pinned_slots_are_never_given_away);
    check::run("discarding frees without counting an eviction", discarding_frees_without_counting);
    check::run("evicting counts", evicting_counts);
    check::run("a long random run agrees with a plain list", agrees_with_a_plain_list);
    return check::result();
}
