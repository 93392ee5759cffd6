#include "options.h"

#include "environment.h"
#include "error.h"
#include "eviction.h"
#include "option_rules.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>

namespace moe {

namespace {

[[noreturn]] void refuse(const std::string & message) { throw Error(ExitCode::usage, message); }

// One row of the table: everything about a flag, for parsing and for --help.
struct Flag {
    const char * name;         // how messages call it
    const char * short_name;   // or nullptr
    const char * alias;        // or nullptr
    const char * value;        // placeholder, nullptr for a switch
    const char * help;
    const char * default_text;
    std::function<void(Options &, const std::string &)> set;
};

int64_t whole_number(const char * flag, const std::string & text, int64_t low, int64_t high) {
    const auto wrong = [&](const char * why) {
        refuse(std::string(flag) + ": '" + text + "' " + why + " (" + std::to_string(low) + " to " +
               std::to_string(high) + ")");
    };
    // strtoll would also take blanks, a plus sign and trailing text.
    const size_t first = !text.empty() && text[0] == '-' ? 1 : 0;
    if (text.size() == first || text.find_first_not_of("0123456789", first) != std::string::npos) {
        wrong("is not a whole number");
    }
    errno = 0;
    const long long value = std::strtoll(text.c_str(), nullptr, 10);
    if (errno == ERANGE || value < low || value > high) {
        wrong("is out of range");
    }
    return value;
}

std::string path(const char * flag, const std::string & text) {
    if (text.empty()) {
        refuse(std::string(flag) + ": the file name is empty");
    }
    return text;
}

double real_number(const char * flag, const std::string & text) {
    char * end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || std::isspace(static_cast<unsigned char>(text[0]))) {
        refuse(std::string(flag) + ": '" + text + "' is not a number");
    }
    return value;
}

void set_temp(Options &, const std::string & text) {
    if (!(real_number("--temp", text) == 0.0)) {
        refuse("--temp: only 0 (greedy decoding) is supported, not " + text);
    }
}

void set_seed(Options &, const std::string & text) {
    if (whole_number("--seed", text, 0, std::numeric_limits<uint32_t>::max()) != 0) {
        refuse("--seed: greedy decoding uses no seed, so only 0 is accepted, not " + text);
    }
}

void set_dense(Options & o, const std::string & text) {
    if (text == "mmap") {
        o.dense_weights = DenseWeights::mmap;
    } else if (text == "warm") {
        o.dense_weights = DenseWeights::warm;
    } else if (text == "anon") {
        o.dense_weights = DenseWeights::anon;
    } else {
        refuse("--dense-weights: '" + text + "' is none of mmap, warm, anon");
    }
}

void set_evict(Options & o, const std::string & text) {
    std::string known;
    for (const std::string & name : eviction_policy_names()) {
        if (name == text) {
            o.evict = text;
            return;
        }
        known += (known.empty() ? "" : ", ") + name;
    }
    refuse("--evict: '" + text + "' is none of " + known);
}

void set_drop(Options & o, const std::string & text) {
    const double value = real_number("--drop-cold-experts", text);
    if (!(value >= 0.0 && value <= 1.0)) {  // also true for NaN
        refuse("--drop-cold-experts: '" + text + "' is out of range (0 to 1)");
    }
    o.drop_cold_experts = value;
}

void set_trace_by(Options & o, const std::string & text) {
    if (text == "node") {
        o.compute_trace_by = ComputeTraceBy::node;
    } else if (text == "layer") {
        o.compute_trace_by = ComputeTraceBy::layer;
    } else {
        refuse("--compute-trace-by: '" + text + "' is neither node nor layer");
    }
}

constexpr int64_t max_i32 = std::numeric_limits<int32_t>::max();

void set_moe_dump(Options & o, const std::string & text) {
    const size_t colon = text.find(':');
    if (text.compare(0, 3, "il=") != 0 || colon == std::string::npos || colon + 1 == text.size()) {
        refuse("--moe-dump: '" + text + "' is not il=LAYER:PREFIX, as in il=3:out/layer");
    }
    const std::string layer = text.substr(3, colon - 3);
    o.moe_dump = MoeDump{static_cast<uint32_t>(whole_number("--moe-dump", layer, 0, max_i32)), text.substr(colon + 1)};
}

constexpr int64_t max_cache_mb = int64_t{1} << 24;  // 16 TiB: far above any arena, far below overflow of bytes

uint64_t mebibytes(const char * flag, const std::string & text, int64_t least = 0) {
    return static_cast<uint64_t>(whole_number(flag, text, least, max_cache_mb));
}

int32_t small_number(const char * flag, const std::string & text, int32_t low, int32_t high) {
    return static_cast<int32_t>(whole_number(flag, text, low, high));
}

void set_budget(Options & o, const std::string & text) {
    o.ram_budget_mb = mebibytes("--ram-budget-mb", text, 1);
    o.moe_stream = true;
}

void set_cache(Options & o, const std::string & text) {
    o.cache_auto = text == "auto";
    o.cache_mb = o.cache_auto ? 0 : mebibytes("--cache-mb", text);
}

const std::vector<Flag> & flags() {
    using O = Options;
    using S = const std::string;
    static const std::vector<Flag> table = {
        {"--model", "-m", nullptr, "FILE", "GGUF file", "required",
         [](O & o, S & v) { o.model = path("--model", v); }},
        {"--prompt", "-p", nullptr, "TEXT", "the prompt; exactly one of -p, -f, --ppl-file and --session",
         "required", [](O & o, S & v) { o.prompt = v; }},
        {"--file", "-f", nullptr, "FILE", "file with the prompt", "required",
         [](O & o, S & v) { o.prompt_file = path("--file", v); }},
        {"--session", nullptr, nullptr, nullptr, "instead of a prompt: requests on standard input, docs/session.md",
         "off", [](O & o, S &) { o.session = true; }},
        {"--predict", "-n", nullptr, "N", "tokens to generate", "128",
         [](O & o, S & v) { o.n_predict = static_cast<int32_t>(whole_number("--predict", v, 1, max_i32)); }},
        {"--ctx-size", "-c", nullptr, "N", "context length in tokens; prompt + N must fit", "1024",
         [](O & o, S & v) { o.n_ctx = static_cast<uint32_t>(whole_number("--ctx-size", v, 2, max_i32)); }},
        {"--batch-size", "-b", nullptr, "N", "prefill batch (logical = physical)", "128",
         [](O & o, S & v) { o.n_batch = static_cast<uint32_t>(whole_number("--batch-size", v, 1, max_i32)); }},
        {"--threads", "-t", nullptr, "N", "compute threads, 1..1024", "cores - 1, at least 1",
         [](O & o, S & v) { o.threads = static_cast<int32_t>(whole_number("--threads", v, 1, 1024)); }},
        {"--temp", nullptr, nullptr, "T", "only 0: greedy, ties go to the lowest token id", "0", set_temp},
        {"--seed", nullptr, nullptr, "N", "only 0: greedy decoding uses none", "0", set_seed},
        {"--moe-stream", nullptr, nullptr, nullptr,
         "page routed experts through the slot arena; --overlap to --forced-routes below need it", "off: plain mmap",
         [](O & o, S &) { o.moe_stream = true; }},
        {"--overlap", nullptr, nullptr, nullptr, "resident experts compute while missing ones are read", "off",
         [](O & o, S &) { o.overlap = true; }},
        {"--cache-mb", nullptr, nullptr, "N|auto", "arena in MiB, 0 = no reuse between calls, auto = by free memory",
         "0", set_cache},
        {"--cache-floor-mb", nullptr, nullptr, "N", "auto leaves this much memory to the system", "1536",
         [](O & o, S & v) { o.cache_floor_mb = mebibytes("--cache-floor-mb", v); }},
        {"--cache-ceil-mb", nullptr, nullptr, "N", "auto takes no more than this, 0 = no bound", "0",
         [](O & o, S & v) { o.cache_ceil_mb = mebibytes("--cache-ceil-mb", v); }},
        {"--force-cache", nullptr, nullptr, nullptr, "accept a --cache-mb below one token's experts", "off: refused",
         [](O & o, S &) { o.force_cache = true; }},
        {"--ram-budget-mb", nullptr, nullptr, "N",
         "instead of a cache size: bound on all anonymous memory, the arena is what is left; implies --moe-stream",
         "none", set_budget},
        {"--reserve-mb", nullptr, nullptr, "N", "memory set aside beside the arena of --ram-budget-mb", "measured",
         [](O & o, S & v) { o.reserve_mb = mebibytes("--reserve-mb", v); }},
        {"--evict", nullptr, nullptr, "NAME", "which expert gives way: lru, ls, ls_pos, lfu, layer, reuse_distance", "lru",
         set_evict},
        {"--io-threads", nullptr, nullptr, "N", "read lanes, 1..16", "4",
         [](O & o, S & v) { o.io_threads = small_number("--io-threads", v, 1, 16); }},
        {"--no-odirect", nullptr, nullptr, nullptr, "buffered reads", "direct",
         [](O & o, S &) { o.direct_io = false; }},
        {"--dense-weights", nullptr, nullptr, "mmap|warm|anon",
         "all other weights: mapped, mapped and read once at load, or in anonymous memory", "mmap", set_dense},
        {"--load-all", nullptr, nullptr, nullptr, "read every expert of a layer at each use, for debugging", "off",
         [](O & o, S &) { o.load_all = true; }},
        {"--prefetch", nullptr, nullptr, "K", "read ahead the last token's experts of K layers, 0..8", "0",
         [](O & o, S & v) { o.prefetch = small_number("--prefetch", v, 0, 8); }},
        {"--predict-prefetch", nullptr, nullptr, nullptr, "predicted experts are retained and read ahead", "off",
         [](O & o, S &) { o.predict_prefetch = true; }},
        {"--predict-spec-max", nullptr, nullptr, "N", "predicted experts read ahead per layer, 0..8; 0 = only retain",
         "2", [](O & o, S & v) { o.predict_spec_max = small_number("--predict-spec-max", v, 0, 8); }},
        {"--predict-horizon", nullptr, nullptr, "N", "predict 1 or 2 layers ahead", "2",
         [](O & o, S & v) { o.predict_horizon = small_number("--predict-horizon", v, 1, 2); }},
        {"--predict-log", nullptr, nullptr, nullptr, "score predictors against the routing, change nothing", "off",
         [](O & o, S &) { o.predict_log = true; }},
        {"--drop-cold-experts", nullptr, nullptr, "F", "leave out missing experts lighter than F / top-k, 0..1", "off",
         set_drop},
        {"--drop-no-renorm", nullptr, nullptr, nullptr, "the experts that stay keep their weights", "rescaled",
         [](O & o, S &) { o.drop_renorm = false; }},
        {"--drop-in-prefill", nullptr, nullptr, nullptr, "drop in the prompt too", "decode only",
         [](O & o, S &) { o.drop_in_prefill = true; }},
        {"--route-trace", nullptr, nullptr, "FILE", "one row per routed expert", "none",
         [](O & o, S & v) { o.route_trace = path("--route-trace", v); }},
        {"--io-trace", nullptr, nullptr, "FILE", "one row per read", "none",
         [](O & o, S & v) { o.io_trace = path("--io-trace", v); }},
        {"--compute-trace", nullptr, nullptr, "FILE", "one row per graph node or layer", "none",
         [](O & o, S & v) { o.compute_trace = path("--compute-trace", v); }},
        {"--compute-trace-by", nullptr, nullptr, "node|layer", "what a row of --compute-trace is", "node",
         set_trace_by},
        {"--stats", nullptr, nullptr, "FILE", "the pager's statistics as JSON lines", "none",
         [](O & o, S & v) { o.stats = path("--stats", v); }},
        {"--forced-routes", nullptr, nullptr, "FILE", "take the routing from a recorded route trace", "none",
         [](O & o, S & v) { o.forced_routes = path("--forced-routes", v); }},
        {"--repack", nullptr, nullptr, nullptr, "let llama.cpp repack weights; plain mode only", "off",
         [](O & o, S &) { o.repack = true; }},
        {"--given-text", nullptr, nullptr, "FILE", "decode this text after the prompt, not what the model would choose",
         "greedy", [](O & o, S & v) { o.given_text = path("--given-text", v); }},
        {"--ppl-file", nullptr, nullptr, "FILE", "perplexity of this text instead of generating, chunks of --ctx-size",
         "none", [](O & o, S & v) { o.ppl_file = path("--ppl-file", v); }},
        {"--ppl-chunks", nullptr, nullptr, "N", "score at most N chunks of --ppl-file", "all",
         [](O & o, S & v) { o.ppl_chunks = static_cast<int32_t>(whole_number("--ppl-chunks", v, 1, max_i32)); }},
        {"--expert-used", nullptr, "--n-expert-used", "N", "top-k override, 1..n_expert", "model's own",
         [](O & o, S & v) { o.expert_used = static_cast<int32_t>(whole_number("--expert-used", v, 1, max_i32)); }},
        {"--no-eog", nullptr, nullptr, nullptr, "do not stop at end of generation", "stop",
         [](O & o, S &) { o.stop_at_eog = false; }},
        {"--logits-digest", nullptr, nullptr, nullptr, "SHA-256 over every logits row used", "off",
         [](O & o, S &) { o.logits_digest = true; }},
        {"--csv", nullptr, nullptr, "FILE", "one row per token", "none",
         [](O & o, S & v) { o.csv = path("--csv", v); }},
        {"--telemetry", nullptr, nullptr, "FILE", "JSON lines", "none",
         [](O & o, S & v) { o.telemetry = path("--telemetry", v); }},
        {"--moe-dump", nullptr, nullptr, "il=K:PREFIX",
         "input, routing and output of MoE layer K of every decode, as files PREFIX.*.K", "none", set_moe_dump},
        {"--plan-memory", nullptr, nullptr, nullptr, "print the bytes needed as JSON, load no weights, exit", "off",
         [](O & o, S &) { o.plan_memory = true; }},
        {"--progress", nullptr, nullptr, nullptr, "one line per token on stderr", "off",
         [](O & o, S &) { o.progress = true; }},
        {"--help", "-h", nullptr, nullptr, "print this table", "", [](O & o, S &) { o.help = true; }},
        {"--version", nullptr, nullptr, nullptr, "print version, build and llama.cpp version", "",
         [](O & o, S &) { o.version = true; }},
    };
    return table;
}

const Flag * find_flag(const std::string & text) {
    for (const Flag & flag : flags()) {
        if (text == flag.name || (flag.short_name && text == flag.short_name) || (flag.alias && text == flag.alias)) {
            return &flag;
        }
    }
    return nullptr;
}

// Flags from variables, as if they stood on the command line.
void apply_variables(Options & options, GivenFlags & given) {
    for (const FlagDefault & added : options.from_variables) {
        find_flag(added.flag)->set(options, added.value);
        given.insert(added.flag);
    }
}

}  // namespace

Options parse_options(const std::vector<std::string> & args, unsigned cores, const Variables & variables) {
    Options options;
    options.threads = static_cast<int32_t>(std::clamp(cores, 2u, 1025u) - 1);
    GivenFlags given;

    for (size_t i = 0; i < args.size(); ++i) {
        const std::string & arg = args[i];
        if (arg.size() < 2 || arg[0] != '-') {
            refuse("unexpected argument '" + arg + "'; every input has a flag, see --help");
        }
        std::string name = arg;
        std::optional<std::string> value;
        const size_t equals = arg.find('=');
        if (arg[1] == '-' && equals != std::string::npos) {
            name = arg.substr(0, equals);
            value = arg.substr(equals + 1);
        }
        const Flag * flag = find_flag(name);
        if (!flag) {
            refuse("unknown flag '" + name + "', see --help");
        }
        if (!given.insert(flag->name).second) {
            refuse(std::string(flag->name) + " is given twice");
        }
        if (!flag->value && value) {
            refuse(std::string(flag->name) + " takes no value");
        }
        if (flag->value && !value) {
            // A flag in a value's place is a forgotten value; who means it writes --prompt=-n.
            if (i + 1 == args.size() || find_flag(args[i + 1])) {
                refuse(std::string(flag->name) + " needs a value: " + flag->value);
            }
            value = args[++i];
        }
        flag->set(options, value.value_or(""));
    }

    if (options.help) {
        return options;
    }
    if (!options.version) {
        options.from_variables = flag_defaults(variables, given);
    }
    try {
        apply_variables(options, given);
        check_combinations(options, given);
    } catch (const Error & error) {
        throw Error(error.code(), name_variables(error.what(), options.from_variables));
    }
    if (!options.version) {
        check_required_pager(variables, options.moe_stream);
    }
    return options;
}

std::string help_text() {
    std::string text = "usage: moe-engine -m FILE (-p TEXT | -f FILE | --ppl-file FILE | --session) [flags]\n\n";
    for (const Flag & flag : flags()) {
        std::string left = "  ";
        left += flag.short_name ? std::string(flag.short_name) + ", " : "    ";
        left += flag.name;
        if (flag.alias) {
            left += std::string(", ") + flag.alias;
        }
        if (flag.value) {
            left += std::string(" ") + flag.value;
        }
        left.resize(std::max<size_t>(left.size() + 2, 38), ' ');
        text += left + flag.help;
        if (*flag.default_text) {
            text += std::string(" [") + flag.default_text + "]";
        }
        text += '\n';
    }
    text += "\nexit codes: 0 ok, 2 usage, 3 model cannot be used, 4 does not fit the memory limit or cache below one "
            "token's cycle, 5 I/O error, 1 other\n";
    return text;
}

}  // namespace moe
