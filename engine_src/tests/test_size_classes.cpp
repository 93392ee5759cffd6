// Models with experts of two sizes: slots of two sizes, and the bits of plain execution at every arena.
#include "decoding.h"

using namespace decoding;

namespace {

tiny::Model two_sizes(uint32_t n_layer, uint32_t n_large) {
    tiny::Model m = model(GGML_TYPE_Q4_K, n_layer);
    m.n_large_layer = n_large;
    m.large_type = GGML_TYPE_BF16;
    return m;
}

void check_two_sizes(const Run & run) {
    const PagerCounters & c = run.counters;
    CHECK(!run.error);
    CHECK(c.requests == c.hits + c.misses);
    CHECK(c.reads == c.misses * 3);
    CHECK(run.info.classes.size() == 2);
    CHECK(run.info.classes[0].slot_bytes < run.info.classes[1].slot_bytes);
    uint64_t bytes = 0;
    for (const PagerInfo::SlotClass & size : run.info.classes) {
        bytes += size.slots * size.slot_bytes;
    }
    CHECK(bytes == run.info.arena_bytes);
    CHECK(c.resident_bytes <= bytes);
}

void every_arena_equals_plain() {
    const TempDir dir;
    const tiny::Model m = two_sizes(5, 2);
    PagerOptions options;
    options.model_path = tiny::write(m, dir.file("m"));
    const Run plain = run_plain(options.model_path, 1);
    const PagerInfo info = Pager::open(options)->info();
    const uint64_t large = info.least_arena_bytes;
    uint64_t evictions = 0;
    // Exact: from one expert on, which small ones share with large ones, over arenas with a few slots of either size.
    for (const uint64_t bytes : {large, 2 * large, 3 * large + large / 2, 7 * large, info.whole_bytes / 3,
                                 info.whole_bytes / 2, info.whole_bytes - large, info.whole_bytes}) {
        for (const bool overlap : {false, true}) {
            options.arena_bytes = bytes;
            options.executor.overlap = overlap;
            const Run paged = run_paged(options);
            CHECK(same_bits(plain, paged));
            check_two_sizes(paged);
            CHECK(paged.info.arena_bytes <= bytes);
            CHECK(paged.info.classes[1].slots > 0);
            CHECK(bytes != info.whole_bytes || (paged.counters.evictions == 0 && paged.info.coverage == 1));
            evictions += paged.counters.evictions;
        }
    }
    CHECK(evictions > 1000);
}

// Without a size, and with one below a layer's top-k: raised to that.
void the_smallest_arena_has_large_slots_only() {
    const TempDir dir;
    PagerOptions options;
    options.model_path = tiny::write(two_sizes(3, 1), dir.file("m"));
    for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}}) {
        options.cache_bytes = bytes;
        const Run paged = run_paged(options);
        CHECK(same_bits(run_plain(options.model_path, 1), paged));
        check_two_sizes(paged);
        CHECK(paged.info.classes[0].slots == 0 && paged.info.classes[1].slots == 2);
    }
}

void an_exact_arena_holds_an_expert_or_is_refused() {
    const TempDir dir;
    PagerOptions options;
    options.model_path = tiny::write(two_sizes(3, 1), dir.file("m"));
    options.arena_bytes = Pager::open(options)->info().least_arena_bytes - 1;
    bool refused = false;
    try {
        Pager::open(options);
    } catch (const Error & error) {
        refused = error.code() == ExitCode::memory;
    }
    CHECK(refused);
}

// Small experts must sit in large slots as well, so a layer's lie in two regions.
void prediction_works_across_sizes() {
    const TempDir dir;
    PagerOptions options;
    options.model_path = tiny::write(two_sizes(5, 2), dir.file("m"));
    const Run plain = run_plain(options.model_path, 1);
    options.cache_bytes = Pager::open(options)->info().whole_bytes / 2;
    options.executor.overlap = true;
    options.foresight.predict = true;
    options.foresight.speculate_max = 2;
    options.foresight.horizon = 1;
    const Run paged = run_paged(options);
    CHECK(same_bits(plain, paged));
    CHECK(paged.counters.foresight && paged.counters.foresight->experts > 0);
}

}  // namespace

int main() {
    quiet_log();
    check::run("every arena equals plain", every_arena_equals_plain);
    check::run("the smallest arena has large slots only", the_smallest_arena_has_large_slots_only);
    check::run("an exact arena holds an expert or is refused", an_exact_arena_holds_an_expert_or_is_refused);
    check::run("prediction works across sizes", prediction_works_across_sizes);
    return check::result();
}
