#include "options.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <functional>

#include "errors.h"

namespace launcher {

const char * const usage_text =
    "moe-launcher run --dir DIR [--data-limit-bytes N] [--cgroup-limit-bytes N [--cgroup-mode wanted|required]]\n"
    "    [--time-limit-s S] [--sample-ms 20] [--device-ms 250] [--probe-s 1.0] [--probe-file FILE]\n"
    "    [--proc-root /proc] [--sys-root /sys] [--env K=V]... [--cwd DIR]\n"
    "    -- PROGRAM ARG...          one cell: start, limit, sample, write DIR/result.json\n"
    "moe-launcher probe [--probe-s 1.0] [--probe-file FILE]       one probe, JSON on stdout\n"
    "moe-launcher state [--proc-root /proc] [--sys-root /sys]     one device state, JSON on stdout\n"
    "moe-launcher selftest [--data-limit-bytes N] [--cgroup-limit-bytes N] [--proc-root /proc] [--sys-root /sys]\n"
    "                              can these limits be had here? JSON on stdout, exit 0 yes, 6 no\n"
    "moe-launcher --version\n";

namespace {

int64_t to_int(const std::string & name, const std::string & text, int64_t least) {
    int64_t value = 0;
    const char * end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, value);
    if (parsed.ec != std::errc() || parsed.ptr != end || value < least) {
        throw UsageError(name + " takes a whole number of at least " + std::to_string(least) + ", not '" + text + "'");
    }
    return value;
}

double to_seconds(const std::string & name, const std::string & text, bool zero_allowed) {
    constexpr double longest_s = 1e7;  // keeps nanoseconds within 64 bits
    char * end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    const bool read = !text.empty() && *end == '\0' && std::isfinite(value);
    if (!read || value < 0 || value > longest_s || (value == 0 && !zero_allowed)) {
        throw UsageError(name + " takes seconds" + (zero_allowed ? " (0 for none)" : " above 0") + ", not '" + text + "'");
    }
    return value;
}

struct Rule {
    const char * name;
    std::vector<Verb> verbs;
    std::function<void(Options &, const std::string & name, const std::string & value)> set;
};

const std::vector<Rule> & rules() {
    using O = Options;
    using S = const std::string &;
    static const std::vector<Rule> table = {
        {"--dir", {Verb::run}, [](O & o, S, S v) { o.dir = v; }},
        {"--data-limit-bytes", {Verb::run, Verb::selftest}, [](O & o, S n, S v) { o.data_limit_bytes = to_int(n, v, 1); }},
        {"--cgroup-limit-bytes", {Verb::run, Verb::selftest},
         [](O & o, S n, S v) { o.cgroup_limit_bytes = to_int(n, v, 1); }},
        {"--cgroup-mode", {Verb::run}, [](O & o, S n, S v) {
             if (v != "wanted" && v != "required") {
                 throw UsageError(n + " is wanted or required, not '" + v + "'");
             }
             o.cgroup_mode = v;
         }},
        {"--time-limit-s", {Verb::run}, [](O & o, S n, S v) { o.time_limit_s = to_seconds(n, v, false); }},
        {"--sample-ms", {Verb::run}, [](O & o, S n, S v) { o.sample_ms = to_int(n, v, 1); }},
        {"--device-ms", {Verb::run}, [](O & o, S n, S v) { o.device_ms = to_int(n, v, 1); }},
        {"--probe-s", {Verb::run, Verb::probe}, [](O & o, S n, S v) { o.probe_s = to_seconds(n, v, true); }},
        {"--probe-file", {Verb::run, Verb::probe}, [](O & o, S, S v) { o.probe_file = v; }},
        {"--proc-root", {Verb::run, Verb::state, Verb::selftest}, [](O & o, S, S v) { o.proc_root = v; }},
        {"--sys-root", {Verb::run, Verb::state, Verb::selftest}, [](O & o, S, S v) { o.sys_root = v; }},
        {"--env", {Verb::run}, [](O & o, S n, S v) {
             if (v.find('=') == std::string::npos || v.front() == '=') {
                 throw UsageError(n + " takes NAME=VALUE, not '" + v + "'");
             }
             o.env.push_back(v);
         }},
        {"--cwd", {Verb::run}, [](O & o, S, S v) { o.cwd = v; }},
    };
    return table;
}

Verb to_verb(const std::string & word) {
    if (word == "run") return Verb::run;
    if (word == "probe") return Verb::probe;
    if (word == "state") return Verb::state;
    if (word == "selftest") return Verb::selftest;
    if (word == "--version") return Verb::version;
    if (word == "--help" || word == "-h") return Verb::help;
    throw UsageError("unknown command '" + word + "'; there are run, probe, state, selftest, --version, --help");
}

const Rule & find_rule(const std::string & name, Verb verb, const std::string & verb_name) {
    for (const Rule & rule : rules()) {
        if (name != rule.name) {
            continue;
        }
        for (const Verb allowed : rule.verbs) {
            if (allowed == verb) {
                return rule;
            }
        }
        throw UsageError(name + " has no meaning for '" + verb_name + "'");
    }
    if (name.rfind("--", 0) != 0) {
        throw UsageError("unexpected argument '" + name + "'; the program to run comes after --");
    }
    throw UsageError("unknown option " + name);
}

void check_complete(const Options & options) {
    if (options.verb == Verb::run && options.dir.empty()) {
        throw UsageError("run needs --dir DIR");
    }
    if (options.verb == Verb::run && (options.program.empty() || options.program.front().empty())) {
        throw UsageError("run needs a program after --");
    }
    if (!options.cgroup_mode.empty() && !options.cgroup_limit_bytes) {
        throw UsageError("--cgroup-mode needs --cgroup-limit-bytes N");
    }
    if (options.verb == Verb::selftest && !options.data_limit_bytes && !options.cgroup_limit_bytes) {
        throw UsageError("selftest needs --data-limit-bytes N or --cgroup-limit-bytes N");
    }
}

}  // namespace

Options parse_options(const std::vector<std::string> & args) {
    if (args.empty()) {
        throw UsageError("a command is missing; there are run, probe, state, selftest, --version, --help");
    }
    Options options;
    options.verb = to_verb(args[0]);
    for (size_t at = 1; at < args.size(); ++at) {
        if (args[at] == "--" && options.verb == Verb::run) {
            options.program.assign(args.begin() + static_cast<std::ptrdiff_t>(at) + 1, args.end());
            break;
        }
        const size_t equals = args[at].rfind("--", 0) == 0 ? args[at].find('=') : std::string::npos;
        const std::string name = args[at].substr(0, equals);
        const Rule & rule = find_rule(name, options.verb, args[0]);
        std::string value;
        if (equals != std::string::npos) {
            value = args[at].substr(equals + 1);
        } else if (at + 1 < args.size() && args[at + 1] != "--") {
            value = args[++at];
        }
        if (value.empty()) {
            throw UsageError(name + " needs a value");
        }
        rule.set(options, name, value);
    }
    check_complete(options);
    return options;
}

}  // namespace launcher
