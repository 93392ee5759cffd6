#include "options.h"

#include "error.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <set>

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

void set_temp(Options &, const std::string & text) {
    char * end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || std::isspace(static_cast<unsigned char>(text[0]))) {
        refuse("--temp: '" + text + "' is not a number");
    }
    if (!(value == 0.0)) {
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
    } else if (text == "anon") {
        o.dense_weights = DenseWeights::anon;
    } else {
        refuse("--dense-weights: '" + text + "' is neither mmap nor anon");
    }
}

constexpr int64_t max_i32 = std::numeric_limits<int32_t>::max();
constexpr int64_t max_cache_mb = int64_t{1} << 24;  // 16 TiB: far above any arena, far below overflow of bytes

const std::vector<Flag> & flags() {
    using O = Options;
    using S = const std::string;
    static const std::vector<Flag> table = {
        {"--model", "-m", nullptr, "FILE", "GGUF file", "required",
         [](O & o, S & v) { o.model = path("--model", v); }},
        {"--prompt", "-p", nullptr, "TEXT", "the prompt; exactly one of -p and -f", "required",
         [](O & o, S & v) { o.prompt = v; }},
        {"--file", "-f", nullptr, "FILE", "file with the prompt", "required",
         [](O & o, S & v) { o.prompt_file = path("--file", v); }},
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
        {"--moe-stream", nullptr, nullptr, nullptr, "page routed experts through the slot arena", "off: plain mmap",
         [](O & o, S &) { o.moe_stream = true; }},
        {"--cache-mb", nullptr, nullptr, "N", "arena in MiB, 0 = no reuse between calls; needs --moe-stream", "0",
         [](O & o, S & v) { o.cache_mb = static_cast<uint64_t>(whole_number("--cache-mb", v, 0, max_cache_mb)); }},
        {"--io-threads", nullptr, nullptr, "N", "read lanes, 1..16; needs --moe-stream", "4",
         [](O & o, S & v) { o.io_threads = static_cast<int32_t>(whole_number("--io-threads", v, 1, 16)); }},
        {"--no-odirect", nullptr, nullptr, nullptr, "buffered reads; needs --moe-stream", "direct",
         [](O & o, S &) { o.direct_io = false; }},
        {"--dense-weights", nullptr, nullptr, "mmap|anon", "where all other weights live; anon needs --moe-stream",
         "mmap", set_dense},
        {"--repack", nullptr, nullptr, nullptr, "let llama.cpp repack weights; plain mode only", "off",
         [](O & o, S &) { o.repack = true; }},
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

using Given = std::set<std::string>;

void check_combinations(const Options & o, const Given & given) {
    const auto has = [&](const char * name) { return given.count(name) > 0; };
    if (o.version && given.size() > 1) {
        refuse("--version stands alone");
    }
    if (o.version) {
        return;
    }
    if (!has("--model")) {
        refuse("--model FILE is required");
    }
    if (has("--prompt") && has("--file")) {
        refuse("--prompt and --file exclude each other");
    }
    // Planning needs no prompt, but one that is given must fit.
    if (!has("--prompt") && !has("--file") && !o.plan_memory) {
        refuse("a prompt is required: --prompt TEXT or --file FILE");
    }
    if (o.prompt && o.prompt->empty()) {
        refuse("--prompt: the text is empty");
    }
    if (!o.moe_stream) {
        for (const char * name : {"--cache-mb", "--io-threads", "--no-odirect"}) {
            if (has(name)) {
                refuse(std::string(name) + " needs --moe-stream");
            }
        }
        if (o.dense_weights == DenseWeights::anon) {
            refuse("--dense-weights anon needs --moe-stream");
        }
    } else if (o.repack) {
        refuse("--repack cannot be combined with --moe-stream: paged experts are not repacked");
    }
    if (o.plan_memory) {
        for (const char * name : {"--csv", "--telemetry", "--progress", "--logits-digest", "--no-eog"}) {
            if (has(name)) {
                refuse(std::string(name) + " cannot be combined with --plan-memory: nothing is decoded");
            }
        }
    }
    if (o.csv && o.csv == o.telemetry) {
        refuse("--csv and --telemetry name the same file");
    }
    // One prompt token at least; the exact check follows once the prompt is tokenised.
    if (static_cast<uint64_t>(o.n_predict) + 1 > o.n_ctx && !(o.plan_memory && !has("--predict"))) {
        refuse("--predict " + std::to_string(o.n_predict) + " and a prompt do not fit into --ctx-size " +
               std::to_string(o.n_ctx));
    }
}

}  // namespace

Options parse_options(const std::vector<std::string> & args, unsigned cores) {
    Options options;
    options.threads = static_cast<int32_t>(std::clamp(cores, 2u, 1025u) - 1);
    Given given;

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

    if (!options.help) {
        check_combinations(options, given);
    }
    return options;
}

std::string help_text() {
    std::string text = "usage: moe-engine -m FILE (-p TEXT | -f FILE) [flags]\n\n";
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
    text += "\nexit codes: 0 ok, 2 usage, 3 model cannot be used, 4 does not fit the memory limit, 5 I/O error, 1 other\n";
    return text;
}

}  // namespace moe
