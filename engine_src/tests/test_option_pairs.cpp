// Every pair of flags, with every way to complete it: what the rules below allow is parsed, everything else is refused
// with one line that names two flags which do not go together. The rules are written down here a second time, in
// another form than the parser's, so that a rule forgotten on either side is noticed.
#include "error.h"
#include "options.h"

#include "check.h"

#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct Setting {
    std::string flag;
    std::string value;  // "" for a switch
};
using Settings = std::vector<Setting>;

// One valid value of every flag, and several where the rules tell values apart.
const Settings every_setting = {
    {"--model", "m"}, {"--prompt", "hello"}, {"--file", "p"}, {"--predict", "5"}, {"--ctx-size", "512"},
    {"--batch-size", "64"}, {"--threads", "2"}, {"--temp", "0"}, {"--seed", "0"}, {"--moe-stream", ""},
    {"--overlap", ""}, {"--cache-mb", "0"}, {"--cache-mb", "64"}, {"--cache-mb", "auto"}, {"--cache-floor-mb", "100"},
    {"--cache-ceil-mb", "100"}, {"--force-cache", ""}, {"--ram-budget-mb", "64"}, {"--reserve-mb", "32"},
    {"--evict", "ls_pos"}, {"--io-threads", "2"}, {"--no-odirect", ""},
    {"--dense-weights", "mmap"}, {"--dense-weights", "warm"}, {"--dense-weights", "anon"}, {"--load-all", ""},
    {"--prefetch", "0"}, {"--prefetch", "2"}, {"--predict-prefetch", ""}, {"--predict-spec-max", "0"},
    {"--predict-horizon", "1"}, {"--predict-log", ""}, {"--drop-cold-experts", "0.5"}, {"--drop-no-renorm", ""},
    {"--drop-in-prefill", ""}, {"--route-trace", "r"}, {"--io-trace", "i"}, {"--compute-trace", "c"},
    {"--compute-trace-by", "layer"}, {"--stats", "j"}, {"--forced-routes", "f"}, {"--given-text", "g"},
    {"--ppl-file", "s"}, {"--moe-dump", "il=0:d"}, {"--repack", ""}, {"--expert-used", "2"},
    {"--no-eog", ""}, {"--logits-digest", ""}, {"--csv", "v"}, {"--telemetry", "t"}, {"--plan-memory", ""},
    {"--progress", ""}, {"--session", ""}, {"--help", ""}, {"--version", ""}, {"--ppl-chunks", "2"},
};

// A pattern is a flag, whatever its value, or "flag value".
using Pattern = std::string;

struct Need {
    Pattern who;
    std::vector<Pattern> any_of;
    Pattern only_with = "";
};

const std::vector<Pattern> a_cache = {"--cache-mb 64", "--cache-mb auto", "--ram-budget-mb"};
const std::vector<Pattern> streaming = {"--moe-stream", "--ram-budget-mb"};

const std::vector<Need> needs = {
    {"--overlap", streaming},
    {"--cache-mb", streaming},
    {"--cache-floor-mb", streaming},
    {"--cache-floor-mb", {"--cache-mb auto"}},
    {"--cache-ceil-mb", streaming},
    {"--cache-ceil-mb", {"--cache-mb auto"}},
    {"--force-cache", streaming},
    {"--force-cache", {"--cache-mb 64"}},
    {"--reserve-mb", {"--ram-budget-mb"}},
    {"--evict", streaming},
    {"--evict", a_cache},
    {"--io-threads", streaming},
    {"--no-odirect", streaming},
    {"--dense-weights warm", streaming},
    {"--dense-weights anon", streaming},
    {"--load-all", streaming},
    {"--prefetch", streaming},
    {"--prefetch 2", a_cache},
    {"--predict-prefetch", streaming},
    {"--predict-prefetch", a_cache},
    {"--predict-spec-max", streaming},
    {"--predict-spec-max", {"--predict-prefetch"}},
    {"--predict-horizon", streaming},
    {"--predict-horizon", {"--predict-prefetch"}},
    {"--predict-log", streaming},
    {"--drop-cold-experts", streaming},
    {"--drop-cold-experts", a_cache},
    {"--drop-no-renorm", streaming},
    {"--drop-no-renorm", {"--drop-cold-experts"}},
    {"--drop-in-prefill", streaming},
    {"--drop-in-prefill", {"--drop-cold-experts"}},
    {"--drop-cold-experts", {"--drop-in-prefill"}, "--ppl-file"},
    {"--ppl-chunks", {"--ppl-file"}},
    {"--route-trace", streaming},
    {"--io-trace", streaming},
    {"--compute-trace", streaming},
    {"--compute-trace-by", streaming},
    {"--compute-trace-by", {"--compute-trace"}},
    {"--stats", streaming},
    {"--forced-routes", streaming},
};

struct Exclusion {
    Pattern one;
    Pattern other;
};

const std::vector<Exclusion> exclusions = {
    {"--prompt", "--file"},
    {"--repack", "--moe-stream"},
    {"--repack", "--ram-budget-mb"},
    {"--ram-budget-mb", "--cache-mb"},
    {"--ram-budget-mb", "--cache-floor-mb"},
    {"--ram-budget-mb", "--cache-ceil-mb"},
    {"--ram-budget-mb", "--force-cache"},
    {"--ram-budget-mb", "--load-all"},
    {"--ram-budget-mb", "--forced-routes"},
    {"--load-all", "--cache-mb 64"},
    {"--load-all", "--cache-mb auto"},
    {"--load-all", "--overlap"},
    {"--prefetch 2", "--predict-prefetch"},
    {"--forced-routes", "--predict-prefetch"},
    {"--forced-routes", "--predict-log"},
    {"--forced-routes", "--cache-mb auto"},
    {"--session", "--prompt"},
    {"--session", "--file"},
    {"--session", "--forced-routes"},
    {"--session", "--given-text"},
    {"--session", "--csv"},
    {"--session", "--moe-dump"},
    {"--session", "--telemetry"},
    {"--session", "--progress"},
    {"--session", "--logits-digest"},
    {"--session", "--route-trace"},
    {"--session", "--io-trace"},
    {"--session", "--compute-trace"},
    {"--session", "--plan-memory"},
    {"--ppl-file", "--prompt"},
    {"--ppl-file", "--file"},
    {"--ppl-file", "--predict"},
    {"--ppl-file", "--session"},
    {"--ppl-file", "--given-text"},
    {"--ppl-file", "--no-eog"},
    {"--ppl-file", "--progress"},
    {"--ppl-file", "--csv"},
    {"--ppl-file", "--predict-log"},
    {"--ppl-file", "--predict-prefetch"},
    {"--ppl-file", "--prefetch 2"},
    {"--ppl-file", "--forced-routes"},
    {"--plan-memory", "--csv"},
    {"--plan-memory", "--given-text"},
    {"--plan-memory", "--ppl-chunks"},
    {"--plan-memory", "--moe-dump"},
    {"--plan-memory", "--telemetry"},
    {"--plan-memory", "--progress"},
    {"--plan-memory", "--logits-digest"},
    {"--plan-memory", "--no-eog"},
    {"--plan-memory", "--predict-log"},
    {"--plan-memory", "--route-trace"},
    {"--plan-memory", "--io-trace"},
    {"--plan-memory", "--compute-trace"},
    {"--plan-memory", "--compute-trace-by"},
    {"--plan-memory", "--stats"},
};

bool matches(const Setting & setting, const Pattern & pattern) {
    return pattern == setting.flag || pattern == setting.flag + " " + setting.value;
}

bool holds(const Settings & settings, const Pattern & pattern) {
    for (const Setting & setting : settings) {
        if (matches(setting, pattern)) {
            return true;
        }
    }
    return false;
}

bool holds_any(const Settings & settings, const std::vector<Pattern> & patterns) {
    for (const Pattern & pattern : patterns) {
        if (holds(settings, pattern)) {
            return true;
        }
    }
    return false;
}

std::string flag_of(const Pattern & pattern) { return pattern.substr(0, pattern.find(' ')); }

// Two flags that do not go together, or one and that which it lacks.
struct Violation {
    std::string one;
    std::string other;
};

std::vector<Violation> violations(const Settings & settings) {
    std::vector<Violation> found;
    if (holds(settings, "--help")) {
        return found;  // help is printed for whatever can be parsed
    }
    if (holds(settings, "--version")) {
        for (const Setting & setting : settings) {
            if (setting.flag != "--version") {
                found.push_back({"--version", setting.flag});
            }
        }
        return found;
    }
    for (const Need & need : needs) {
        const bool applies = need.only_with.empty() || holds(settings, need.only_with);
        if (applies && holds(settings, need.who) && !holds_any(settings, need.any_of)) {
            found.push_back({flag_of(need.who), flag_of(need.any_of.front())});
        }
    }
    for (const Exclusion & exclusion : exclusions) {
        if (holds(settings, exclusion.one) && holds(settings, exclusion.other)) {
            found.push_back({flag_of(exclusion.one), flag_of(exclusion.other)});
        }
    }
    return found;
}

// Whether a message names this flag, not one that it is the beginning of.
bool names(const std::string & message, const std::string & flag) {
    for (size_t at = message.find(flag); at != std::string::npos; at = message.find(flag, at + 1)) {
        const char next = at + flag.size() < message.size() ? message[at + flag.size()] : ' ';
        if (next != '-' && (next < 'a' || next > 'z')) {
            return true;
        }
    }
    return false;
}

std::string text_of(const Settings & settings) {
    std::string text;
    for (const Setting & setting : settings) {
        text += " " + setting.flag + (setting.value.empty() ? "" : " " + setting.value);
    }
    return text;
}

// The one line of the refusal; empty when it was accepted.
std::optional<std::string> refusal(const Settings & settings) {
    std::vector<std::string> args;
    for (const Setting & setting : settings) {
        args.push_back(setting.flag);
        if (!setting.value.empty()) {
            args.push_back(setting.value);
        }
    }
    try {
        moe::parse_options(args, 4);
    } catch (const moe::Error & error) {
        CHECK(error.code() == moe::ExitCode::usage);
        return error.what();
    }
    return std::nullopt;
}

// All that another flag can need, in all combinations.
const std::vector<Settings> every_completion = [] {
    const std::vector<Settings> choices = {{{}, {"--moe-stream", ""}},
                                           {{}, {"--cache-mb", "64"}, {"--cache-mb", "auto"}, {"--ram-budget-mb", "64"}},
                                           {{}, {"--predict-prefetch", ""}},
                                           {{}, {"--drop-cold-experts", "0.5"}},
                                           {{}, {"--drop-in-prefill", ""}},
                                           {{}, {"--compute-trace", "c"}}};
    std::vector<Settings> all = {{}};
    for (const Settings & choice : choices) {
        std::vector<Settings> longer;
        for (const Settings & begun : all) {
            for (const Setting & next : choice) {
                longer.push_back(begun);
                if (!next.flag.empty()) {
                    longer.back().push_back(next);
                }
            }
        }
        all = longer;
    }
    return all;
}();

// The pair with a model, a prompt and `completion`; empty when that would give a flag twice.
std::optional<Settings> completed(const Settings & pair, const Settings & completion) {
    Settings settings = pair;
    for (const Setting & setting : completion) {
        if (holds(pair, setting.flag)) {
            return std::nullopt;
        }
        settings.push_back(setting);
    }
    if (!holds(pair, "--model")) {
        settings.push_back({"--model", "m"});
    }
    if (!holds_any(pair, {"--prompt", "--file", "--session", "--ppl-file"})) {
        settings.push_back({"--prompt", "hello"});
    }
    return settings;
}

// What the parser does with these settings is what the rules say. Returns its refusal.
std::optional<std::string> check_settings(const Settings & settings) {
    const std::vector<Violation> wrong = violations(settings);
    const std::optional<std::string> message = refusal(settings);
    bool ok = wrong.empty() == !message.has_value();
    if (ok && message) {
        bool named = false;
        for (const Violation & violation : wrong) {
            named = named || (names(*message, violation.one) && names(*message, violation.other));
        }
        ok = named && message->find('\n') == std::string::npos;
    }
    if (!ok) {
        std::fprintf(stderr, "  %s:%s\n  got: %s\n", wrong.empty() ? "legal" : "illegal", text_of(settings).c_str(),
                     message.value_or("(accepted)").c_str());
    }
    CHECK(ok);
    return message;
}

void every_pair_is_accepted_or_refused_as_the_rules_say() {
    size_t legal_pairs = 0;
    size_t illegal_pairs = 0;
    for (size_t a = 0; a < every_setting.size(); ++a) {
        for (size_t b = a + 1; b < every_setting.size(); ++b) {
            const Settings pair = {every_setting[a], every_setting[b]};
            if (pair[0].flag == pair[1].flag) {
                continue;
            }
            bool accepted = false;
            bool named = false;
            for (const Settings & completion : every_completion) {
                if (const std::optional<Settings> settings = completed(pair, completion)) {
                    const std::optional<std::string> message = check_settings(*settings);
                    accepted = accepted || !message;
                    named = named || (message && (names(*message, pair[0].flag) || names(*message, pair[1].flag)));
                }
            }
            if (!accepted && !named) {
                std::fprintf(stderr, "  never named:%s\n", text_of(pair).c_str());
            }
            CHECK(accepted || named);
            ++(accepted ? legal_pairs : illegal_pairs);
        }
    }
    std::fprintf(stderr, "  %zu pairs legal, %zu illegal\n", legal_pairs, illegal_pairs);
    CHECK(legal_pairs > 0 && illegal_pairs > 0);
}

void no_flag_is_left_out() {
    std::set<std::string> tested;
    for (const Setting & setting : every_setting) {
        tested.insert(setting.flag);
    }
    std::set<std::string> in_help;
    std::istringstream help(moe::help_text());
    std::string line;
    while (std::getline(help, line)) {
        const size_t start = line.find("--");
        if (line.compare(0, 2, "  ") == 0 && start != std::string::npos) {
            in_help.insert(line.substr(start, line.find_first_of(", ", start) - start));
        }
    }
    for (const std::string & flag : in_help) {
        if (tested.count(flag) == 0) {
            std::fprintf(stderr, "  not tested: %s\n", flag.c_str());
        }
    }
    CHECK(tested == in_help);
}

void no_two_outputs_and_no_input_share_a_file() {
    const std::vector<std::string> outputs = {"--csv", "--telemetry", "--route-trace",
                                              "--io-trace", "--compute-trace", "--stats"};
    const Settings base = {{"--model", "m"}, {"--moe-stream", ""}};
    for (const std::string & output : outputs) {
        for (const std::string & other : outputs) {
            if (output < other) {
                const Settings same = {base[0], base[1], {"--prompt", "x"}, {output, "same"}, {other, "same"}};
                const std::string message = refusal(same).value_or("");
                CHECK(names(message, output) && names(message, other));
            }
        }
        const std::string prompt =
            refusal({base[0], base[1], {"--file", "same"}, {output, "same"}}).value_or("");
        CHECK(names(prompt, output) && names(prompt, "--file"));
        const std::string routes =
            refusal({base[0], base[1], {"--prompt", "x"}, {"--forced-routes", "same"}, {output, "same"}}).value_or("");
        CHECK(names(routes, output) && names(routes, "--forced-routes"));
        const std::string given =
            refusal({base[0], base[1], {"--prompt", "x"}, {"--given-text", "same"}, {output, "same"}}).value_or("");
        CHECK(names(given, output) && names(given, "--given-text"));
        const std::string dump =
            refusal({base[0], base[1], {"--prompt", "x"}, {"--moe-dump", "il=3:d"}, {output, "d.ids.3"}}).value_or("");
        CHECK(names(dump, output) && names(dump, "--moe-dump"));
        const std::string scored = refusal({base[0], base[1], {"--ppl-file", "same"}, {output, "same"}}).value_or("");
        CHECK(names(scored, output) && names(scored, "--ppl-file"));
    }
}

}  // namespace

int main() {
    check::run("no flag is left out", no_flag_is_left_out);
    check::run("every pair is accepted or refused as the rules say",
               every_pair_is_accepted_or_refused_as_the_rules_say);
    check::run("no two outputs, and no input, share a file", no_two_outputs_and_no_input_share_a_file);
    return check::result();
}
