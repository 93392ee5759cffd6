// Gates of dropping: an approximation by intent, exact where it has nothing to drop.
#include "gate.h"

#include <cmath>

using namespace gate;

namespace {

PagerOptions dropping(const Bench & bench, float fraction, uint64_t slots = kSmall) {
    PagerOptions options = bench.options(slots);
    options.drop = DropRule{fraction};
    options.foresight.drop_fraction = fraction;
    return options;
}

uint64_t dropped(const Run & run) { return run.counters.drops ? run.counters.drops->dropped : 0; }

bool generates(const Run & run) {
    return !run.error && run.failed_at < 0 && run.logits.size() % (kPrompt + kDecode) == 0 && !run.logits.empty() &&
           std::all_of(run.logits.begin(), run.logits.end(), [](float logit) { return std::isfinite(logit); });
}

bool same_prompt(const Run & a, const Run & b) {
    const size_t n = a.logits.size() / (kPrompt + kDecode) * kPrompt;
    return std::equal(a.logits.begin(), a.logits.begin() + static_cast<ptrdiff_t>(n), b.logits.begin());
}

void a_threshold_below_any_weight_equals_plain() {
    const Bench bench;
    for (const bool prefill : {false, true}) {
        for (const bool overlap : {false, true}) {
            PagerOptions options = dropping(bench, 1e-6F);
            options.drop_in_prefill = prefill;
            options.executor.overlap = overlap;
            const Run run = run_paged(options);
            check_equal(bench.plain(), run);
            CHECK(dropped(run) == 0);
            CHECK(run.counters.drops && run.counters.drops->routed == 4 * 2 * (kDecode + (prefill ? kPrompt : 0)));
            CHECK(run.counters.evictions > 0);
        }
    }
}

void at_full_strength_it_still_generates() {
    const Bench bench;
    for (const bool overlap : {false, true}) {
        PagerOptions options = dropping(bench, 1.0F);
        options.executor.overlap = overlap;
        options.route_trace = bench.file("route.csv");
        const Run run = run_paged(options);
        CHECK(generates(run));
        CHECK(same_prompt(bench.plain(), run));
        CHECK(!same_bits(bench.plain(), run));
        CHECK(dropped(run) > 0 && dropped(run) < run.counters.drops->routed / 2);
        CHECK(run.counters.requests == run.counters.hits + run.counters.misses);
        CHECK(run.counters.requests < run_paged(bench.options(kSmall)).counters.requests);

        // The trace has what the router chose, and of the dropped that nothing was read for them.
        const Rows rows = read_trace(options.route_trace);
        CHECK(rows.size() == 4 * 2 * (kPrompt + kDecode));
        CHECK(count(rows, "dropped", "1") == dropped(run));
        for (const auto & row : rows) {
            CHECK(row.at("dropped") == "0" || (row.at("residency") == "0" && row.at("expert_bytes") == "0" &&
                  row.at("phase") == "1"));
        }
    }
}

void the_cache_decides_what_is_dropped() {
    const Bench bench;
    const Run small = run_paged(dropping(bench, 1.0F, 4));
    const Run large = run_paged(dropping(bench, 1.0F, 32));
    CHECK(dropped(small) > dropped(large));
}

void a_single_expert_is_never_dropped() {
    tiny::Model m = small_model();
    m.n_expert_used = 1;
    const Bench bench(m);
    const Run run = run_paged(dropping(bench, 1.0F, 6));
    check_equal(bench.plain(), run);
    CHECK(run.counters.drops && run.counters.drops->routed == 4 * kDecode);
    CHECK(dropped(run) == 0 && run.counters.evictions > 0);
}

void survivors_take_over_the_mass_unless_told_otherwise() {
    const Bench bench;
    PagerOptions options = dropping(bench, 1.0F);
    const Run renormalised = run_paged(options);
    options.drop->renormalise = false;
    const Run as_they_are = run_paged(options);
    CHECK(generates(as_they_are));
    CHECK(dropped(as_they_are) > 0);
    CHECK(same_prompt(renormalised, as_they_are) && !same_bits(renormalised, as_they_are));
}

void the_prompt_is_spared_unless_told_otherwise() {
    const Bench bench;
    PagerOptions options = dropping(bench, 1.0F);
    options.drop_in_prefill = true;
    options.route_trace = bench.file("route.csv");
    const Run run = run_paged(options);
    CHECK(generates(run));
    CHECK(!same_prompt(bench.plain(), run));
    CHECK(run.counters.drops && run.counters.drops->routed == 4 * 2 * (kPrompt + kDecode));
    size_t in_prompt = 0;
    for (const auto & row : read_trace(options.route_trace)) {
        in_prompt += row.at("phase") == "0" && row.at("dropped") == "1" ? 1 : 0;
    }
    CHECK(in_prompt > 0 && in_prompt < dropped(run));
}

// Which experts are resident, and so which are dropped, depends on timing here.
void with_foresight_it_still_generates() {
    const Bench bench;
    for (const bool predict : {false, true}) {
        PagerOptions options = dropping(bench, 1.0F);
        options.executor.overlap = true;
        options.foresight.predict = predict;
        options.foresight.prefetch = predict ? 0 : 2;
        const Run run = run_paged(options);
        CHECK(generates(run));
        CHECK(same_prompt(bench.plain(), run));
        CHECK(dropped(run) > 0);
        CHECK(run.counters.foresight && run.counters.foresight->read_bytes > 0);
    }
}

}  // namespace

int main() {
    quiet_log();
    check::run("a threshold below any weight equals plain", a_threshold_below_any_weight_equals_plain);
    check::run("at full strength it still generates", at_full_strength_it_still_generates);
    check::run("the cache decides what is dropped", the_cache_decides_what_is_dropped);
    check::run("a single expert is never dropped", a_single_expert_is_never_dropped);
    check::run("survivors take over the mass unless told otherwise",
               survivors_take_over_the_mass_unless_told_otherwise);
    check::run("the prompt is spared unless told otherwise", the_prompt_is_spared_unless_told_otherwise);
    check::run("with foresight it still generates", with_foresight_it_still_generates);
    return check::result();
}
