// Gates of streaming itself: however experts come into memory, every logit has the bits of a plain run, and each
// gate shows that what it is about has happened.
#include "gate.h"

#include <cctype>

using namespace gate;

namespace {

void caches_of_every_size_equal_plain() {
    const Bench bench(wide_model());
    const Run off = run_paged(bench.options(0));
    const Run small = run_paged(bench.options(kSmall));
    const Run large = run_paged(bench.options(32));
    for (const Run * run : {&off, &small, &large}) {
        check_equal(bench.plain(), *run);
        CHECK(run->counters.requests == off.counters.requests);
        check_counters(*run, 32);
    }
    CHECK(off.counters.hits == 0 && off.counters.evictions == 0);
    CHECK(small.counters.hits > 0 && small.counters.evictions > 0);
    CHECK(large.counters.misses == 32 && large.counters.evictions == 0);
    CHECK(off.counters.read_bytes > small.counters.read_bytes && small.counters.read_bytes > large.counters.read_bytes);
}

void reading_all_experts_changes_nothing_but_the_bytes() {
    const Bench bench;
    const Run selective = run_paged(bench.options(0));
    PagerOptions options = bench.options(0);
    options.executor.load_all = true;
    const Run all = run_paged(options);
    check_equal(bench.plain(), selective);
    check_equal(bench.plain(), all);
    check_counters(all, 32);
    // Two batches of prompt and each token, all layers of eight experts.
    CHECK(all.counters.misses == (2 + kDecode) * 4 * 8);
    CHECK(all.counters.read_bytes > 2 * selective.counters.read_bytes);
}

void overlap_equals_plain() {
    const Bench bench;
    for (const uint64_t slots : {uint64_t{0}, uint64_t{2}, kSmall, uint64_t{32}}) {
        const Run serial = run_paged(bench.options(slots));
        for (const int lanes : {1, 4}) {
            for (const bool direct : {true, false}) {
                PagerOptions options = bench.options(slots);
                options.executor.overlap = true;
                options.io_threads = lanes;
                options.direct_io = direct;
                const Run run = run_paged(options);
                check_equal(bench.plain(), run);
                check_counters(run, 32, 3, false);
                CHECK(run.counters.hits == serial.counters.hits);
                CHECK(run.counters.evictions == serial.counters.evictions);
            }
        }
    }
}

// A few tokens only: ggml's threads wait for each other by spinning, which takes long where the cores are busy.
void overlap_with_two_compute_threads_equals_plain() {
    const Bench bench(model(GGML_TYPE_Q8_0, 2));
    PagerOptions options = bench.options(5);
    options.executor.overlap = true;
    options.foresight.predict = true;
    options.foresight.horizon = 1;
    Session session(options, 2, true);
    constexpr int kTokens = 6;
    const std::vector<llama_token> prompt = make_prompt(0);
    Run run;
    const auto step = [&](Phase phase, const std::vector<llama_token> & tokens, int pos) {
        session.pager().begin_call({phase, static_cast<uint64_t>(pos), static_cast<uint32_t>(tokens.size())});
        CHECK(decode(session.context(), tokens, pos, run) == 0);
        session.pager().end_call();
    };
    step(Phase::prefill, {prompt.begin(), prompt.begin() + kBatch}, 0);
    step(Phase::prefill, {prompt.begin() + kBatch, prompt.end()}, kBatch);
    for (int i = 0; i < kTokens; ++i) {
        step(Phase::decode, {run.tokens.back()}, kPrompt + i);
    }
    CHECK(run.logits.size() / (kPrompt + kTokens) == bench.plain().logits.size() / (kPrompt + kDecode));
    CHECK(std::equal(run.logits.begin(), run.logits.end(), bench.plain().logits.begin()));
    CHECK(session.pager().counters().evictions > 0);
    CHECK(session.pager().counters().foresight->retained > 0);
}

// What a layer's experts are made of, and where its router's weights come from, differs.
void other_kinds_of_experts_equal_plain() {
    for (const tiny::Arch arch : {tiny::Arch::gpt_oss, tiny::Arch::hy_v3}) {
        tiny::Model m = wide_model();
        m.arch = arch;
        m.n_layer = 3;
        const Bench bench(m);
        PagerOptions options = bench.options(kSmall);
        options.executor.overlap = true;
        options.foresight.predict = true;
        options.drop = DropRule{1e-6F};
        const Run run = run_paged(options);
        check_equal(bench.plain(), run);
        CHECK(run.counters.evictions > 0);
        CHECK(run.counters.foresight && run.counters.foresight->experts > 0 && run.counters.foresight->retained > 0);
        CHECK(run.counters.drops && run.counters.drops->routed > 0 && run.counters.drops->dropped == 0);
    }
}

void dense_policies_equal_plain() {
    const Bench bench;
    for (const DensePolicy dense : {DensePolicy::mmap, DensePolicy::warm, DensePolicy::anon}) {
        PagerOptions options = bench.options(kSmall);
        options.dense = dense;
        options.executor.overlap = true;
        const Run run = run_paged(options);
        check_equal(bench.plain(), run);
        CHECK(run.counters.evictions > 0);
        CHECK((run.info.dense_anon_bytes > 0) == (dense == DensePolicy::anon));
    }
}

void sharded_models_equal_plain() {
    const Bench whole;
    for (const uint32_t shards : {2U, 4U}) {
        tiny::Model m = small_model();
        m.n_shards = shards;
        const Bench bench(m);
        CHECK(same_bits(whole.plain(), bench.plain()));
        PagerOptions options = bench.options(kSmall);
        options.executor.overlap = true;
        options.foresight.predict = true;
        const Run run = run_paged(options);
        check_equal(bench.plain(), run);
        CHECK(run.counters.evictions > 0);
    }
}

// The second prompt finds the experts of the first.
void prompts_on_a_warm_cache_equal_plain() {
    const Bench bench(wide_model());
    const Run plain[] = {bench.plain(), run_plain(bench.path(), 1, 1)};  // by seed
    for (const bool eager : {false, true}) {
        for (const uint64_t slots : {kSmall, uint64_t{32}}) {
            PagerOptions options = bench.options(slots);
            options.executor.overlap = eager;
            options.foresight.predict = eager;
            Session session(options);
            uint64_t hits = 0;
            for (const int seed : {0, 1, 0}) {
                const Run run = session.prompt(seed);
                check_equal(plain[seed], run);
                if (slots == 32) {
                    CHECK(seed == 0 || run.counters.hits - hits > hits);
                    CHECK(run.counters.misses == 32);
                } else {
                    CHECK(run.counters.hits > hits);
                }
                hits = run.counters.hits;
            }
        }
    }
}

// Neither has the last layer any rows in a batch of which no logits are wanted.
void a_prompt_without_logits_until_its_last_batch_equals_plain() {
    const Bench bench;
    PagerOptions options = bench.options(kSmall);
    options.executor.overlap = true;
    options.foresight.prefetch = 2;
    options.route_trace = bench.file("route.csv");
    Session session(options);
    Run run;
    llama_batch batch = llama_batch_init(kBatch, 0, 1);
    const std::vector<llama_token> prompt = make_prompt(0);
    for (int i = 0; i < kBatch; ++i) {
        batch.token[i] = prompt[static_cast<size_t>(i)];
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 0;
    }
    batch.n_tokens = kBatch;
    session.pager().begin_call({Phase::prefill, 0, kBatch});
    CHECK(llama_decode(session.context(), batch) == 0);
    session.pager().end_call();
    llama_batch_free(batch);
    session.pager().begin_call({Phase::prefill, kBatch, kPrompt - kBatch});
    CHECK(decode(session.context(), {prompt.begin() + kBatch, prompt.end()}, kBatch, run) == 0);
    session.pager().end_call();
    const size_t n_vocab = bench.plain().logits.size() / (kPrompt + kDecode);
    CHECK(run.logits.size() == (kPrompt - kBatch) * n_vocab);
    CHECK(std::equal(run.logits.begin(), run.logits.end(),
          bench.plain().logits.begin() + kBatch * static_cast<ptrdiff_t>(n_vocab)));
    session.pager().close_traces();
    const Rows rows = read_trace(options.route_trace);
    CHECK(count(rows, "layer", "0") == 2 * kPrompt);
    CHECK(count(rows, "layer", "3") == 2 * (kPrompt - kBatch));
}

void traces_change_nothing_and_tell_everything() {
    const Bench bench;
    for (const ComputeTracer::Grain grain : {ComputeTracer::Grain::node, ComputeTracer::Grain::layer}) {
        for (const bool overlap : {false, true}) {
            PagerOptions options = bench.options(kSmall);
            options.executor.overlap = overlap;
            options.io_trace = bench.file("io.csv");
            options.compute_trace = bench.file("compute.csv");
            options.route_trace = bench.file("route.csv");
            options.compute_grain = grain;
            const Run run = run_paged(options);
            check_equal(bench.plain(), run);

            const Rows reads = read_trace(options.io_trace);
            CHECK(reads.size() == run.counters.reads);
            uint64_t read_bytes = 0;
            for (const auto & row : reads) {
                read_bytes += std::stoull(row.at("read_bytes"));
            }
            CHECK(read_bytes == run.counters.read_bytes);

            const Rows computed = read_trace(options.compute_trace);
            for (const char * layer : {"-1", "0", "1", "2", "3"}) {
                CHECK(count(computed, "layer", layer) >= 2 + kDecode);
            }
            if (grain == ComputeTracer::Grain::node) {
                CHECK(count(computed, "op", "MUL_MAT_ID") == 3 * 4 * (2 + kDecode));
            } else {
                CHECK(count(computed, "name", "layer-3") == 2 + kDecode);
            }

            const Rows routed = read_trace(options.route_trace);
            CHECK(routed.size() == 4 * 2 * (kPrompt + kDecode));
            CHECK(count(routed, "residency", "0") > 0 && count(routed, "residency", "1") > 0);
            CHECK(count(routed, "dropped", "1") == 0);
        }
    }
}

// A model that is told to route as it did routes as it does; told otherwise, it computes something else.
void forced_routes_are_followed() {
    const Bench bench;
    for (const bool overlap : {false, true}) {
        PagerOptions options = bench.options(kSmall);
        options.executor.overlap = overlap;
        options.route_trace = bench.file("route.csv");
        const Run recorded = run_paged(options);
        check_equal(bench.plain(), recorded);

        options.forced_routes = options.route_trace;
        options.route_trace = bench.file("again.csv");
        const Run forced = run_paged(options);
        check_equal(bench.plain(), forced);
        CHECK(forced.counters.evictions > 0);
        CHECK(forced.counters.hits == recorded.counters.hits);
        CHECK(forced.counters.misses == recorded.counters.misses);
        CHECK(forced.counters.evictions == recorded.counters.evictions);
        CHECK(forced.counters.read_bytes == recorded.counters.read_bytes);
        CHECK(read_trace(options.route_trace) == read_trace(options.forced_routes));

        // The same trace but for its experts: each two further on.
        std::ifstream in(options.forced_routes);
        std::ofstream out(bench.file("other.csv"));
        for (std::string line; std::getline(in, line);) {
            size_t at = 0;
            for (int column = 0; column < 5; ++column) {
                at = line.find(',', at) + 1;
            }
            if (std::isdigit(static_cast<unsigned char>(line[0])) != 0) {
                line[at] = static_cast<char>('0' + (line[at] - '0' + 2) % 8);
            }
            out << line << '\n';
        }
        out.close();
        options.forced_routes = bench.file("other.csv");
        const Run other = run_paged(options);
        CHECK(!other.error && other.failed_at < 0);
        CHECK(!same_bits(bench.plain(), other));
        const Rows was = read_trace(bench.file("route.csv"));
        const Rows is = read_trace(options.route_trace);
        CHECK(was.size() == is.size());
        for (size_t i = 0; i < std::min(was.size(), is.size()); ++i) {
            CHECK((std::stoi(was[i].at("expert")) + 2) % 8 == std::stoi(is[i].at("expert")));
        }
    }
}

}  // namespace

int main() {
    quiet_log();
    check::run("caches of every size equal plain", caches_of_every_size_equal_plain);
    check::run("reading all experts changes nothing but the bytes", reading_all_experts_changes_nothing_but_the_bytes);
    check::run("overlap equals plain", overlap_equals_plain);
    check::run("overlap with two compute threads equals plain", overlap_with_two_compute_threads_equals_plain);
    check::run("other kinds of experts equal plain", other_kinds_of_experts_equal_plain);
    check::run("dense policies equal plain", dense_policies_equal_plain);
    check::run("sharded models equal plain", sharded_models_equal_plain);
    check::run("prompts on a warm cache equal plain", prompts_on_a_warm_cache_equal_plain);
    check::run("a prompt without logits until its last batch equals plain",
               a_prompt_without_logits_until_its_last_batch_equals_plain);
    check::run("traces change nothing and tell everything", traces_change_nothing_and_tell_everything);
    check::run("forced routes are followed", forced_routes_are_followed);
    return check::result();
}
