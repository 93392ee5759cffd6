// The command line, rule by rule: what is accepted with which meaning, and what is refused with which words.
#include "error.h"
#include "options.h"

#include "check.h"

#include <functional>
#include <string>
#include <vector>

namespace {

using moe::ComputeTraceBy;
using moe::DenseWeights;
using moe::Options;
using Args = std::vector<std::string>;

const Args basic = {"-m", "model.gguf", "-p", "hello"};

Args with(Args more) {
    Args args = basic;
    args.insert(args.end(), more.begin(), more.end());
    return args;
}

Args streaming(Args more) {
    more.insert(more.begin(), "--moe-stream");
    return with(more);
}

Args cached(Args more) {
    more.insert(more.begin(), "--cache-mb=64");
    return streaming(more);
}

struct Accepted {
    Args args;
    std::function<bool(const Options &)> meaning;
};

void accepted() {
    const std::vector<Accepted> table = {
        {basic,
         [](const Options & o) {
             return o.model == "model.gguf" && o.prompt == "hello" && !o.prompt_file && o.n_predict == 128 &&
                    o.n_ctx == 1024 && o.n_batch == 128 && !o.moe_stream && o.cache_mb == 0 && o.io_threads == 4 &&
                    o.direct_io && o.dense_weights == DenseWeights::mmap && !o.repack && !o.expert_used &&
                    o.stop_at_eog && !o.logits_digest && !o.csv && !o.telemetry && !o.plan_memory && !o.progress;
         }},
        {basic,
         [](const Options & o) {
             return !o.overlap && !o.cache_auto && !o.has_cache() && o.cache_floor_mb == 1536 && o.cache_ceil_mb == 0 &&
                    !o.force_cache && !o.load_all && o.prefetch == 0 && !o.predict_prefetch &&
                    o.predict_spec_max == 2 && o.predict_horizon == 2 && !o.predict_log && !o.drop_cold_experts &&
                    o.drop_renorm && !o.drop_in_prefill && !o.route_trace && !o.io_trace && !o.compute_trace &&
                    o.compute_trace_by == ComputeTraceBy::node && !o.forced_routes;
         }},
        {{"--model", "m", "--file", "f"}, [](const Options & o) { return o.prompt_file == "f" && !o.prompt; }},
        {{"-m", "m", "-f", "-"}, [](const Options & o) { return o.prompt_file == "-"; }},
        {{"--model=m", "--prompt=-n"}, [](const Options & o) { return o.model == "m" && o.prompt == "-n"; }},
        {{"-m", "m", "-p", "a=b"}, [](const Options & o) { return o.prompt == "a=b"; }},
        {{"-m", "m", "-p", "-7 degrees"}, [](const Options & o) { return o.prompt == "-7 degrees"; }},
        {with({"-n", "1"}), [](const Options & o) { return o.n_predict == 1; }},
        {with({"--predict", "1023"}), [](const Options & o) { return o.n_predict == 1023; }},
        {with({"-c", "2147483647"}), [](const Options & o) { return o.n_ctx == 2147483647u; }},
        {with({"--ctx-size", "129"}), [](const Options & o) { return o.n_ctx == 129; }},
        {with({"-b", "1"}), [](const Options & o) { return o.n_batch == 1; }},
        {with({"--batch-size", "4096"}), [](const Options & o) { return o.n_batch == 4096; }},
        {with({"-t", "1024"}), [](const Options & o) { return o.threads == 1024; }},
        {with({"--threads", "1"}), [](const Options & o) { return o.threads == 1; }},
        {with({"--temp", "0"}), [](const Options &) { return true; }},
        {with({"--temp", "0.0"}), [](const Options &) { return true; }},
        {with({"--seed", "0"}), [](const Options &) { return true; }},
        {with({"--moe-stream"}), [](const Options & o) { return o.moe_stream; }},
        {with({"--moe-stream", "--cache-mb", "0"}), [](const Options & o) { return o.cache_mb == 0; }},
        {with({"--cache-mb", "4096", "--moe-stream"}), [](const Options & o) { return o.cache_mb == 4096; }},
        {with({"--moe-stream", "--io-threads", "16"}), [](const Options & o) { return o.io_threads == 16; }},
        {with({"--moe-stream", "--no-odirect"}), [](const Options & o) { return !o.direct_io; }},
        {with({"--moe-stream", "--dense-weights", "anon"}),
         [](const Options & o) { return o.dense_weights == DenseWeights::anon; }},
        {streaming({"--dense-weights", "warm"}),
         [](const Options & o) { return o.dense_weights == DenseWeights::warm; }},
        {streaming({"--overlap"}), [](const Options & o) { return o.overlap; }},
        {streaming({"--cache-mb", "auto"}),
         [](const Options & o) { return o.cache_auto && o.cache_mb == 0 && o.has_cache(); }},
        {streaming({"--cache-mb", "1"}), [](const Options & o) { return !o.cache_auto && o.has_cache(); }},
        {streaming({"--cache-mb", "auto", "--cache-floor-mb", "0", "--cache-ceil-mb", "16777216"}),
         [](const Options & o) { return o.cache_floor_mb == 0 && o.cache_ceil_mb == 16777216; }},
        {streaming({"--cache-mb=auto", "--cache-floor-mb=9", "--cache-ceil-mb=0"}),
         [](const Options & o) { return o.cache_floor_mb == 9 && o.cache_ceil_mb == 0; }},
        {cached({"--force-cache"}), [](const Options & o) { return o.force_cache && o.cache_mb == 64; }},
        {streaming({"--load-all"}), [](const Options & o) { return o.load_all; }},
        {streaming({"--prefetch", "0"}), [](const Options & o) { return o.prefetch == 0; }},
        {cached({"--prefetch", "8"}), [](const Options & o) { return o.prefetch == 8; }},
        {cached({"--predict-prefetch"}), [](const Options & o) { return o.predict_prefetch; }},
        {cached({"--predict-prefetch", "--predict-spec-max", "0", "--predict-horizon", "1"}),
         [](const Options & o) { return o.predict_spec_max == 0 && o.predict_horizon == 1; }},
        {cached({"--predict-prefetch", "--predict-spec-max", "8"}),
         [](const Options & o) { return o.predict_spec_max == 8 && o.predict_horizon == 2; }},
        {streaming({"--predict-log"}), [](const Options & o) { return o.predict_log; }},
        {basic, [](const Options & o) { return !o.ram_budget_mb && !o.ram_budget_bytes() && !o.reserve_bytes(); }},
        {with({"--ram-budget-mb", "64"}),
         [](const Options & o) {
             return o.ram_budget_bytes() == uint64_t{64} << 20 && !o.reserve_mb && o.moe_stream && o.has_cache();
         }},
        {with({"--ram-budget-mb", "64", "--moe-stream", "--reserve-mb", "0"}),
         [](const Options & o) { return o.ram_budget_mb == 64 && o.reserve_bytes() == 0; }},
        {with({"--ram-budget-mb", "64", "--prefetch", "2", "--overlap", "--drop-cold-experts", "0.5"}),
         [](const Options & o) { return o.prefetch == 2 && o.overlap && o.drop_cold_experts == 0.5; }},
        {{"-m", "m", "--session", "--ram-budget-mb", "64"}, [](const Options & o) { return o.session; }},
        {{"-m", "m", "--plan-memory", "--ram-budget-mb", "64"}, [](const Options & o) { return o.plan_memory; }},
        {cached({"--drop-cold-experts", "0.75"}),
         [](const Options & o) { return o.drop_cold_experts == 0.75 && o.drop_renorm && !o.drop_in_prefill; }},
        {cached({"--drop-cold-experts", "0"}), [](const Options & o) { return o.drop_cold_experts == 0.0; }},
        {cached({"--drop-cold-experts=1", "--drop-no-renorm", "--drop-in-prefill"}),
         [](const Options & o) { return o.drop_cold_experts == 1.0 && !o.drop_renorm && o.drop_in_prefill; }},
        {cached({}), [](const Options & o) { return o.evict == "lru" && !o.stats; }},
        {cached({"--evict", "reuse_distance", "--stats", "s"}),
         [](const Options & o) { return o.evict == "reuse_distance" && o.stats == "s"; }},
        {streaming({"--route-trace", "r", "--io-trace", "i", "--compute-trace", "c"}),
         [](const Options & o) {
             return o.route_trace == "r" && o.io_trace == "i" && o.compute_trace == "c" &&
                    o.compute_trace_by == ComputeTraceBy::node;
         }},
        {streaming({"--compute-trace", "c", "--compute-trace-by", "layer"}),
         [](const Options & o) { return o.compute_trace_by == ComputeTraceBy::layer; }},
        {streaming({"--compute-trace", "c", "--compute-trace-by", "node"}),
         [](const Options & o) { return o.compute_trace_by == ComputeTraceBy::node; }},
        {streaming({"--forced-routes", "f"}), [](const Options & o) { return o.forced_routes == "f"; }},
        {with({"--dense-weights", "mmap"}), [](const Options & o) { return o.dense_weights == DenseWeights::mmap; }},
        {with({"--repack"}), [](const Options & o) { return o.repack; }},
        {with({"--expert-used", "3"}), [](const Options & o) { return o.expert_used == 3; }},
        {with({"--n-expert-used", "3"}), [](const Options & o) { return o.expert_used == 3; }},
        {with({"--no-eog"}), [](const Options & o) { return !o.stop_at_eog; }},
        {with({"--logits-digest"}), [](const Options & o) { return o.logits_digest; }},
        {with({"--csv", "a", "--telemetry", "b"}),
         [](const Options & o) { return o.csv == "a" && o.telemetry == "b"; }},
        {with({"--progress"}), [](const Options & o) { return o.progress; }},
        {{"-m", "m", "--plan-memory"}, [](const Options & o) { return o.plan_memory && !o.prompt; }},
        {{"-m", "m", "--plan-memory", "-c", "16"}, [](const Options & o) { return o.n_ctx == 16; }},
        {with({"--plan-memory", "-n", "5", "-t", "3"}),
         [](const Options & o) { return o.plan_memory && o.prompt == "hello" && o.n_predict == 5; }},
        {{"-m", "m", "--ppl-file", "t", "-c", "3"},
         [](const Options & o) { return o.ppl_file == "t" && !o.prompt && o.n_ctx == 3; }},
        {{"-m", "m", "--ppl-file", "t", "--ppl-chunks", "5"}, [](const Options & o) { return o.ppl_chunks == 5; }},
        {{"-m", "m", "--ppl-file", "t", "--moe-stream", "--prefetch", "0"},
         [](const Options & o) { return o.ppl_file == "t" && o.prefetch == 0; }},
        {{"--version"}, [](const Options & o) { return o.version; }},
        {{"--help"}, [](const Options & o) { return o.help; }},
        {with({"-h"}), [](const Options & o) { return o.help; }},
    };
    for (const Accepted & row : table) {
        bool ok = false;
        try {
            ok = row.meaning(moe::parse_options(row.args, 4));
        } catch (const moe::Error & error) {
            std::fprintf(stderr, "refused: %s\n", error.what());
        }
        if (!ok) {
            std::fprintf(stderr, "  for:");
            for (const std::string & arg : row.args) {
                std::fprintf(stderr, " %s", arg.c_str());
            }
            std::fprintf(stderr, "\n");
        }
        CHECK(ok);
    }
}

struct Refused {
    Args args;
    const char * words;  // in the message
};

void refused() {
    const std::vector<Refused> table = {
        {{}, "--model FILE is required"},
        {{"-p", "x"}, "--model FILE is required"},
        {{"-m", "m"}, "a prompt is required"},
        {{"-m", "m", "-p", "x", "-f", "y"}, "exclude each other"},
        {{"-m", "m", "-p", ""}, "--prompt: the text is empty"},
        {{"-m", "", "-p", "x"}, "--model: the file name is empty"},
        {{"-m", "m", "-f", ""}, "--file: the file name is empty"},
        {with({"--frobnicate"}), "unknown flag '--frobnicate'"},
        {with({"-x"}), "unknown flag '-x'"},
        {with({"--verbose=1"}), "unknown flag '--verbose'"},
        {with({"stray"}), "unexpected argument 'stray'"},
        {with({"-"}), "unexpected argument '-'"},
        {with({""}), "unexpected argument ''"},
        // given twice, also under another name
        {with({"-n", "5", "-n", "5"}), "--predict is given twice"},
        {with({"-n", "5", "--predict", "6"}), "--predict is given twice"},
        {with({"-m", "other"}), "--model is given twice"},
        {with({"--expert-used", "1", "--n-expert-used", "1"}), "--expert-used is given twice"},
        {with({"--moe-stream", "--moe-stream"}), "--moe-stream is given twice"},
        // values
        {with({"-n"}), "--predict needs a value"},
        {with({"-n", "-t", "1"}), "--predict needs a value"},
        {{"-m", "-p", "x"}, "--model needs a value"},
        {{"-m", "m", "-p"}, "--prompt needs a value"},
        {with({"--moe-stream=yes"}), "--moe-stream takes no value"},
        {with({"-n", "0"}), "out of range"},
        {with({"-n", "-1"}), "out of range"},
        {with({"-n", "2147483648"}), "out of range"},
        {with({"-n", "99999999999999999999999"}), "out of range"},
        {with({"-n", "5x"}), "not a whole number"},
        {with({"-n", "5.0"}), "not a whole number"},
        {with({"-n", "+5"}), "not a whole number"},
        {with({"-n", " 5"}), "not a whole number"},
        {with({"-n", "0x10"}), "not a whole number"},
        {with({"-n", "--"}), "not a whole number"},
        {with({"-n", ""}), "not a whole number"},
        {with({"-c", "0"}), "--ctx-size"},
        {with({"-c", "-5"}), "--ctx-size"},
        {with({"-b", "0"}), "--batch-size"},
        {with({"-t", "0"}), "--threads"},
        {with({"-t", "1025"}), "--threads"},
        {with({"--moe-stream", "--cache-mb", "-1"}), "--cache-mb"},
        {with({"--moe-stream", "--cache-mb", "18446744073709551615"}), "--cache-mb"},
        {with({"--moe-stream", "--cache-mb", "17592186044416"}), "--cache-mb"},
        {with({"--moe-stream", "--io-threads", "0"}), "--io-threads"},
        {with({"--moe-stream", "--io-threads", "17"}), "--io-threads"},
        {with({"--moe-stream", "--dense-weights", "disk"}), "none of mmap, warm, anon"},
        {cached({"--evict", "mru"}), "--evict: 'mru' is none of lru, ls, ls_pos, lfu, layer, reuse_distance"},
        {cached({"--evict", ""}), "is none of lru"},
        {streaming({"--stats", ""}), "--stats: the file name is empty"},
        {streaming({"--cache-mb", "Auto"}), "not a whole number"},
        {streaming({"--cache-mb", ""}), "not a whole number"},
        {streaming({"--cache-mb", "16777217"}), "--cache-mb: '16777217' is out of range"},
        {streaming({"--cache-mb=auto", "--cache-floor-mb", "-1"}), "--cache-floor-mb: '-1' is out of range"},
        {streaming({"--cache-mb=auto", "--cache-floor-mb", "16777217"}), "--cache-floor-mb"},
        {streaming({"--cache-mb=auto", "--cache-ceil-mb", "auto"}), "--cache-ceil-mb: 'auto' is not a whole number"},
        {cached({"--prefetch", "9"}), "--prefetch: '9' is out of range (0 to 8)"},
        {cached({"--prefetch", "-1"}), "--prefetch: '-1' is out of range"},
        {cached({"--predict-prefetch", "--predict-spec-max", "9"}), "--predict-spec-max: '9' is out of range"},
        {cached({"--predict-prefetch", "--predict-horizon", "0"}), "--predict-horizon: '0' is out of range (1 to 2)"},
        {cached({"--predict-prefetch", "--predict-horizon", "3"}), "--predict-horizon: '3' is out of range"},
        {cached({"--drop-cold-experts", "1.01"}), "--drop-cold-experts: '1.01' is out of range (0 to 1)"},
        {cached({"--drop-cold-experts", "-0.1"}), "out of range"},
        {cached({"--drop-cold-experts", "nan"}), "--drop-cold-experts: 'nan' is out of range"},
        {cached({"--drop-cold-experts", "inf"}), "out of range"},
        {cached({"--drop-cold-experts", "half"}), "--drop-cold-experts: 'half' is not a number"},
        {cached({"--drop-cold-experts", "0.5x"}), "not a number"},
        {cached({"--drop-cold-experts", ""}), "not a number"},
        {streaming({"--compute-trace", "c", "--compute-trace-by", "op"}), "neither node nor layer"},
        {streaming({"--route-trace", ""}), "--route-trace: the file name is empty"},
        {streaming({"--io-trace", ""}), "--io-trace: the file name is empty"},
        {streaming({"--compute-trace", ""}), "--compute-trace: the file name is empty"},
        {streaming({"--forced-routes", ""}), "--forced-routes: the file name is empty"},
        {with({"--moe-dump", ""}), "--moe-dump: '' is not il=LAYER:PREFIX"},
        {with({"--moe-dump", "3:d"}), "--moe-dump: '3:d' is not il=LAYER:PREFIX"},
        {with({"--moe-dump", "il=3"}), "is not il=LAYER:PREFIX"},
        {with({"--moe-dump", "il=3:"}), "is not il=LAYER:PREFIX"},
        {with({"--moe-dump", "il=:d"}), "--moe-dump: '' is not a whole number"},
        {with({"--moe-dump", "il=-1:d"}), "--moe-dump: '-1' is out of range"},
        {with({"--moe-dump", "il=0x1:d"}), "--moe-dump: '0x1' is not a whole number"},
        {with({"--expert-used", "0"}), "--expert-used"},
        {with({"--expert-used", "-2"}), "--expert-used"},
        {with({"--temp", "0.7"}), "only 0"},
        {with({"--temp", "nan"}), "only 0"},
        {with({"--temp", "hot"}), "not a number"},
        {with({"--temp", ""}), "not a number"},
        {with({"--temp", " 0"}), "not a number"},
        {with({"--seed", "42"}), "only 0"},
        {with({"--seed", "-1"}), "out of range"},
        // combinations
        {with({"--ram-budget-mb", "0"}), "--ram-budget-mb: '0' is out of range (1 to 16777216)"},
        {with({"--ram-budget-mb", "16777217"}), "--ram-budget-mb: '16777217' is out of range"},
        {with({"--ram-budget-mb", "auto"}), "--ram-budget-mb: 'auto' is not a whole number"},
        {with({"--ram-budget-mb", "64", "--reserve-mb", "-1"}), "--reserve-mb: '-1' is out of range"},
        {with({"--reserve-mb", "32"}), "--reserve-mb needs --ram-budget-mb N"},
        {cached({"--reserve-mb", "32"}), "--reserve-mb needs --ram-budget-mb N"},
        {cached({"--ram-budget-mb", "64"}), "--cache-mb cannot be combined with --ram-budget-mb"},
        {with({"--ram-budget-mb", "64", "--cache-mb", "0"}), "--cache-mb cannot be combined with --ram-budget-mb"},
        {with({"--ram-budget-mb", "64", "--repack"}), "--repack cannot be combined with --ram-budget-mb"},
        {with({"--cache-mb", "0"}), "--cache-mb needs --moe-stream"},
        {with({"--cache-mb", "64"}), "--cache-mb needs --moe-stream"},
        {with({"--io-threads", "4"}), "--io-threads needs --moe-stream"},
        {with({"--no-odirect"}), "--no-odirect needs --moe-stream"},
        {with({"--dense-weights", "anon"}), "--dense-weights anon needs --moe-stream"},
        {with({"--dense-weights", "warm"}), "--dense-weights warm needs --moe-stream"},
        {streaming({"--cache-floor-mb", "1"}), "--cache-floor-mb needs --cache-mb auto"},
        {cached({"--cache-ceil-mb", "1"}), "--cache-ceil-mb needs --cache-mb auto"},
        {streaming({"--force-cache"}), "--force-cache needs --cache-mb N with N > 0"},
        {streaming({"--force-cache", "--cache-mb", "auto"}), "--force-cache needs --cache-mb N with N > 0"},
        {cached({"--load-all"}), "--load-all needs --cache-mb 0"},
        {streaming({"--load-all", "--overlap"}), "--load-all cannot be combined with --overlap"},
        {streaming({"--cache-mb", "auto", "--forced-routes", "f"}),
         "--cache-mb auto cannot be combined with --forced-routes: auto sizes a cache for this machine"},
        {streaming({"--prefetch", "1"}), "--prefetch needs a cache: add --cache-mb N"},
        {streaming({"--predict-prefetch"}), "--predict-prefetch needs a cache: add --cache-mb N"},
        {cached({"--predict-prefetch", "--prefetch", "1"}), "--prefetch cannot be combined with --predict-prefetch"},
        {cached({"--predict-spec-max", "1"}), "--predict-spec-max needs --predict-prefetch"},
        {cached({"--predict-horizon", "1"}), "--predict-horizon needs --predict-prefetch"},
        {streaming({"--drop-cold-experts", "0.5"}), "--drop-cold-experts needs a cache: add --cache-mb N"},
        {cached({"--drop-no-renorm"}), "--drop-no-renorm needs --drop-cold-experts F"},
        {cached({"--drop-in-prefill"}), "--drop-in-prefill needs --drop-cold-experts F"},
        {streaming({"--compute-trace-by", "node"}), "--compute-trace-by needs --compute-trace FILE"},
        {with({"--repack", "--moe-stream"}), "--repack cannot be combined with --moe-stream"},
        {with({"-c", "128"}), "do not fit into --ctx-size 128"},
        {with({"-n", "1024"}), "do not fit into --ctx-size 1024"},
        {with({"--csv", "same", "--telemetry", "same"}), "the same file"},
        {with({"--plan-memory", "--csv", "c"}), "--csv cannot be combined with --plan-memory"},
        {with({"--plan-memory", "--telemetry", "c"}), "--telemetry cannot be combined with --plan-memory"},
        {with({"--plan-memory", "--progress"}), "--progress cannot be combined with --plan-memory"},
        {with({"--plan-memory", "--logits-digest"}), "--logits-digest cannot be combined with --plan-memory"},
        {with({"--plan-memory", "--no-eog"}), "--no-eog cannot be combined with --plan-memory"},
        // what would be missing is refused too, so it is not asked for
        {streaming({"--plan-memory", "--compute-trace-by", "node"}),
         "--compute-trace-by cannot be combined with --plan-memory"},
        {{"-m", "m", "--plan-memory", "-n", "99", "-c", "99"}, "do not fit"},
        {{"-m", "m", "--ppl-file", ""}, "--ppl-file: the file name is empty"},
        {{"-m", "m", "--ppl-file", "t", "--ppl-chunks", "0"}, "--ppl-chunks"},
        {with({"--ppl-chunks", "2"}), "--ppl-chunks needs --ppl-file"},
        {{"-m", "m", "--ppl-file", "t", "-c", "2"}, "--ppl-file needs a --ctx-size of 3 or more"},
        {with({"--ppl-file", "t"}), "--prompt cannot be combined with --ppl-file"},
        {{"-m", "m", "--ppl-file", "t", "-n", "4"}, "--predict cannot be combined with --ppl-file"},
        {{"-m", "m", "--ppl-file", "t", "--moe-stream", "--cache-mb", "9", "--drop-cold-experts", "1"},
         "--drop-cold-experts needs --drop-in-prefill with --ppl-file"},
        {with({"--version"}), "--version stands alone"},
        // help does not excuse what is wrong by itself
        {{"--help", "--nonsense"}, "unknown flag"},
    };
    for (const Refused & row : table) {
        std::string message = "(accepted)";
        bool usage = false;
        try {
            moe::parse_options(row.args, 4);
        } catch (const moe::Error & error) {
            message = error.what();
            usage = error.code() == moe::ExitCode::usage;
        }
        const bool ok = usage && message.find(row.words) != std::string::npos && message.find('\n') == std::string::npos;
        if (!ok) {
            std::fprintf(stderr, "  expected '%s', got '%s'\n", row.words, message.c_str());
        }
        CHECK(ok);
    }
}

void default_threads_leave_a_core_free() {
    CHECK(moe::parse_options(basic, 0).threads == 1);  // number of cores unknown
    CHECK(moe::parse_options(basic, 1).threads == 1);
    CHECK(moe::parse_options(basic, 2).threads == 1);
    CHECK(moe::parse_options(basic, 8).threads == 7);
    CHECK(moe::parse_options(basic, 100000).threads == 1024);
}

}  // namespace

int main() {
    check::run("accepted", accepted);
    check::run("refused", refused);
    check::run("default threads leave a core free", default_threads_leave_a_core_free);
    return check::result();
}
