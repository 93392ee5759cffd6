// Gates of what is done about experts before they are needed: it changes when and whether bytes are read,
// never a logit.
#include "gate.h"

using namespace gate;

namespace {

void check_foresight(const Run & run) {
    CHECK(run.counters.foresight.has_value());
    const PagerCounters::Foresight f = run.counters.foresight.value_or(PagerCounters::Foresight{});
    CHECK(f.useful <= f.experts);
    CHECK(f.experts * run.info.expert_bytes_max <= f.read_bytes);
    CHECK(f.read_bytes <= run.counters.read_bytes);
    CHECK(!run.counters.drops);
}

// A cache that holds one token's experts holds the previous token's: only below that is there anything to prefetch.
constexpr uint64_t kBelowCycle = 6;

void prefetch_equals_plain() {
    const Bench bench;
    const Run without = run_paged(bench.options(kBelowCycle));
    CHECK(!without.counters.foresight);
    for (const uint32_t ahead : {1U, 2U, 8U}) {
        for (const bool overlap : {false, true}) {
            PagerOptions options = bench.options(kBelowCycle);
            options.foresight.prefetch = ahead;
            options.executor.overlap = overlap;
            const Run run = run_paged(options);
            check_equal(bench.plain(), run);
            check_foresight(run);
            CHECK(run.counters.requests == without.counters.requests);
            CHECK(run.counters.foresight->experts > 0);
            CHECK(run.counters.foresight->retained == 0);
            CHECK(run.counters.evictions > 0);
        }
    }
}

// Fewer slots than a layer's top-k: every layer passes through all of them, and there is no room to speculate.
void an_arena_below_top_k_equals_plain() {
    tiny::Model model = small_model();
    model.n_expert_used = 3;
    const Bench bench(model);
    for (const uint64_t slots : {1U, 2U}) {
        for (const bool overlap : {false, true}) {
            PagerOptions options = bench.options(0);
            options.arena_bytes = slots * decoding::slot_bytes(bench.path());
            options.executor.overlap = overlap;
            check_equal(bench.plain(), run_paged(options));
            options.foresight.prefetch = 2;
            check_equal(bench.plain(), run_paged(options));
            options.foresight.prefetch = 0;
            options.foresight.predict = true;
            const Run predicted = run_paged(options);
            check_equal(bench.plain(), predicted);
            CHECK(predicted.info.slots == slots);
            CHECK(predicted.counters.foresight->experts == 0);
        }
    }
}

void prediction_equals_plain() {
    const Bench bench;
    for (const uint32_t horizon : {1U, 2U}) {
        for (const uint32_t most : {0U, 2U, 8U}) {
            for (const bool overlap : {false, true}) {
                PagerOptions options = bench.options(kSmall);
                options.foresight.predict = true;
                options.foresight.horizon = horizon;
                options.foresight.speculate_max = most;
                options.executor.overlap = overlap;
                const Run run = run_paged(options);
                check_equal(bench.plain(), run);
                check_foresight(run);
                CHECK(run.counters.evictions > 0);
                CHECK(run.counters.foresight->retained > 0);
                CHECK((run.counters.foresight->experts > 0) == (most > 0));
                CHECK((run.counters.foresight->read_bytes > 0) == (most > 0));
            }
        }
    }
}

// Retention alone reads nothing ahead: what it keeps it must have found. One layer ahead nothing depends on timing.
void retention_is_repeatable() {
    const Bench bench;
    PagerOptions options = bench.options(kSmall);
    options.foresight.predict = true;
    options.foresight.horizon = 1;
    options.foresight.speculate_max = 0;
    const Run first = run_paged(options);
    const Run second = run_paged(options);
    CHECK(first.counters.hits == second.counters.hits);
    CHECK(first.counters.read_bytes == second.counters.read_bytes);
    CHECK(first.counters.foresight->retained == second.counters.foresight->retained);
    CHECK(first.counters.hits != run_paged(bench.options(kSmall)).counters.hits);
}

// No slot is left for speculation while a layer is computed, and all that is there must give way to the next.
void an_arena_of_one_tokens_experts_survives_foresight() {
    const Bench bench;
    for (const uint64_t slots : {2, 3, 4, 5}) {
        for (const bool overlap : {false, true}) {
            for (const uint32_t ahead : {0U, 8U}) {
                PagerOptions options = bench.options(slots);
                options.executor.overlap = overlap;
                options.foresight.prefetch = ahead;
                options.foresight.predict = ahead == 0;
                options.foresight.horizon = overlap ? 2 : 1;
                options.foresight.speculate_max = 8;
                Session session(options);
                check_equal(bench.plain(), session.prompt());
                // A prompt far larger than the arena, with speculation of the last token in flight.
                const Run again = session.prompt();
                check_equal(bench.plain(), again);
                CHECK(again.info.slots == slots);
                CHECK(slots == 2 || again.counters.foresight->read_bytes > 0);
            }
        }
    }
}

void the_probe_changes_nothing_and_its_control_is_exact() {
    const Bench bench;
    for (const bool overlap : {false, true}) {
        PagerOptions options = bench.options(kSmall);
        options.executor.overlap = overlap;
        const Run without = run_paged(options);
        options.foresight.log = true;
        Session session(options);
        const Run run = session.prompt();
        check_equal(bench.plain(), run);
        CHECK(!run.counters.foresight);
        CHECK(run.counters.read_bytes == without.counters.read_bytes);
        CHECK(run.counters.reads == without.counters.reads);
        CHECK(run.counters.hits == without.counters.hits);
        CHECK(run.counters.misses == without.counters.misses);
        CHECK(run.counters.evictions == without.counters.evictions);

        const PredictionScore * score = session.pager().prediction();
        CHECK(score != nullptr);
        if (score == nullptr) {
            continue;
        }
        const auto total = [&](Predictor p) { return score->total(p); };
        CHECK(total(Predictor::control).routings > 0);
        CHECK(total(Predictor::control).exact == total(Predictor::control).routings);
        CHECK(total(Predictor::control).slots_hit == 2 * total(Predictor::control).routings);
        // The first layer has no layer before it, the first two none two before.
        CHECK(total(Predictor::previous_token).routings == 4 * kDecode);
        CHECK(total(Predictor::control).routings >= 4 * (kDecode - 1));
        CHECK(total(Predictor::stale_gate).routings >= 3 * (kDecode - 1));
        CHECK(total(Predictor::stale_gate_2).routings >= 2 * (kDecode - 1));
        for (const Predictor p : {Predictor::stale_gate, Predictor::stale_gate_2, Predictor::previous_token}) {
            CHECK(total(p).slots_hit > 0 && total(p).slots_hit < total(p).slots);
        }
        const std::string json = score->json();
        for (const char * layer : {"0", "1", "2", "3"}) {
            CHECK(json.find(std::string("{\"layer\":") + layer + ",\"routings\":" + std::to_string(kDecode)) !=
                  std::string::npos);
        }
    }
}

// Both at once: the score is of the same predictions that act.
void the_probe_beside_prediction_equals_plain() {
    const Bench bench;
    PagerOptions options = bench.options(kSmall);
    options.foresight.log = true;
    options.foresight.predict = true;
    options.executor.overlap = true;
    Session session(options);
    const Run run = session.prompt();
    check_equal(bench.plain(), run);
    CHECK(run.counters.foresight->experts > 0);
    CHECK(session.pager().prediction()->total(Predictor::stale_gate_2).slots_hit > 0);
    CHECK(session.pager().watchdog()->armed());
}

// Its routing is not what the last token's control ranked.
void a_prompt_after_each_token_does_not_spoil_the_control() {
    tiny::Model m = model(GGML_TYPE_Q8_0, 1);
    m.n_expert = 16;
    m.n_expert_used = 4;
    m.n_ff_exp = 64;
    const Bench bench(m);
    PagerOptions options = bench.options(12);
    options.foresight.predict = true;
    Session session(options);
    Run run;
    for (int round = 0; round < 600; ++round) {
        llama_memory_clear(llama_get_memory(session.context()), true);
        session.pager().begin_call({Phase::prefill, 0, 1});
        CHECK(decode(session.context(), {round * 31 % 256}, 0, run) == 0);
        session.pager().begin_call({Phase::decode, 1, 1});
        CHECK(decode(session.context(), {round * 17 % 256}, 1, run) == 0);
    }
    CHECK(session.pager().watchdog()->armed());
}

void the_io_trace_tells_speculation_from_demand() {
    const Bench bench;
    PagerOptions options = bench.options(kSmall);
    options.foresight.predict = true;
    options.io_trace = bench.file("io.csv");
    options.route_trace = bench.file("route.csv");
    const Run run = run_paged(options);
    check_equal(bench.plain(), run);
    const Rows rows = read_trace(options.io_trace);
    uint64_t bytes = 0;
    uint64_t speculative = 0;
    for (const auto & row : rows) {
        bytes += std::stoull(row.at("read_bytes"));
        speculative += row.at("spec") == "1" ? std::stoull(row.at("read_bytes")) : 0;
    }
    CHECK(rows.size() == run.counters.reads);
    CHECK(bytes == run.counters.read_bytes);
    CHECK(speculative == run.counters.foresight->read_bytes && speculative > 0);
    CHECK(count(read_trace(options.route_trace), "residency", "2") == run.counters.foresight->useful);
}

}  // namespace

int main() {
    quiet_log();
    check::run("prefetch equals plain", prefetch_equals_plain);
    check::run("an arena below top-k equals plain", an_arena_below_top_k_equals_plain);
    check::run("prediction equals plain", prediction_equals_plain);
    check::run("retention is repeatable", retention_is_repeatable);
    check::run("an arena of one token's experts survives foresight", an_arena_of_one_tokens_experts_survives_foresight);
    check::run("the probe changes nothing and its control is exact",
               the_probe_changes_nothing_and_its_control_is_exact);
    check::run("the probe beside prediction equals plain", the_probe_beside_prediction_equals_plain);
    check::run("a prompt after each token does not spoil the control",
               a_prompt_after_each_token_does_not_spoil_the_control);
    check::run("the I/O trace tells speculation from demand", the_io_trace_tells_speculation_from_demand);
    return check::result();
}
