#include "options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <functional>

#include "errors.h"

namespace launcher {

const char * const usage_text =
    "One cell: start, limit, sample, write DIR/result.json\n"
    "moe-launcher run --dir DIR [--data-limit-bytes N] [--cgroup-limit-bytes N [--cgroup-mode wanted|required]]\n"
    "    [--time-limit-s S] [--sample-ms 20] [--device-ms 250] [--probe-s 1.0] [--probe-file FILE]\n"
    "    [--proc-root /proc] [--sys-root /sys] [--env K=V]... [--cwd DIR]\n"
    "    [--detach --log FILE] [--lock FILE] [--beat-file FILE --lease-s S] -- PROGRAM ARG...\n"
    "Each of these prints one JSON object on stdout\n"
    "moe-launcher probe [--probe-s 1.0] [--probe-file FILE]       one probe\n"
    "moe-launcher state [--proc-root /proc] [--sys-root /sys]     one device state\n"
    "moe-launcher inspect --dir DIR [--proc-root /proc] [--sys-root /sys]\n"
    "                              the device, the place for our files, other engines, the state\n"
    "moe-launcher selftest [--data-limit-bytes N] [--cgroup-limit-bytes N] [--proc-root /proc] [--sys-root /sys]\n"
    "                              can these limits be had here? exit 0 yes, 6 no\n"
    "moe-launcher hold --lock FILE --owner JSON --beat-file FILE --lease-s S --while FILE --log FILE\n"
    "                              lock the device for a campaign; exit 0 held, 7 another holds it\n"
    "moe-launcher release --lock FILE --token T                   let go of it\n"
    "moe-launcher locked FILE                                     is this lock held?\n"
    "moe-launcher end FILE                                        SIGTERM to those that hold this lock\n"
    "moe-launcher evict FILE...                                   out of the page cache\n"
    "moe-launcher digest [--no-sha256] PATH...                    what files there are, and their SHA-256\n"
    "A line for each line on stdin, which is a sign of life of the host\n"
    "moe-launcher attend --lock FILE --beat-file FILE [--tail FILE BYTES]... [--lease-s S]\n"
    "All arguments from a file, each ended by a NUL\n"
    "moe-launcher --args-file FILE\n"
    "moe-launcher --version\n";

namespace {

struct VerbName {
    const char * name;
    Verb verb;
};

constexpr VerbName verb_names[] = {
    {"run", Verb::run},         {"probe", Verb::probe},   {"state", Verb::state},   {"selftest", Verb::selftest},
    {"attend", Verb::attend},   {"hold", Verb::hold},     {"release", Verb::release}, {"locked", Verb::locked},
    {"end", Verb::end},         {"evict", Verb::evict},   {"digest", Verb::digest}, {"inspect", Verb::inspect},
    {"--version", Verb::version}, {"--help", Verb::help}, {"-h", Verb::help},
};

const char * const verbs_there_are =
    "there are run, probe, state, selftest, attend, hold, release, locked, end, evict, digest, inspect, --version, --help";

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

TailRequest to_tail(const std::string & name, const std::string & file, const std::string & bytes) {
    constexpr int64_t most = 1 << 20;  // it travels with every sign of life
    const TailRequest tail{file, to_int(name, bytes, 0)};
    if (tail.bytes > most) {
        throw UsageError(name + " takes at most " + std::to_string(most) + " bytes, not '" + bytes + "'");
    }
    return tail;
}

struct Rule {
    const char * name;
    std::vector<Verb> verbs;
    std::function<void(Options &, const std::string & name, const std::vector<std::string> & values)> set;
    size_t values = 1;
};

const std::vector<Rule> & rules() {
    using O = Options;
    using S = const std::string &;
    using V = const std::vector<std::string> &;
    static const std::vector<Rule> table = {
        {"--dir", {Verb::run, Verb::inspect}, [](O & o, S, V v) { o.dir = v[0]; }},
        {"--data-limit-bytes", {Verb::run, Verb::selftest},
         [](O & o, S n, V v) { o.data_limit_bytes = to_int(n, v[0], 1); }},
        {"--cgroup-limit-bytes", {Verb::run, Verb::selftest},
         [](O & o, S n, V v) { o.cgroup_limit_bytes = to_int(n, v[0], 1); }},
        {"--cgroup-mode", {Verb::run}, [](O & o, S n, V v) {
             if (v[0] != "wanted" && v[0] != "required") {
                 throw UsageError(n + " is wanted or required, not '" + v[0] + "'");
             }
             o.cgroup_mode = v[0];
         }},
        {"--time-limit-s", {Verb::run}, [](O & o, S n, V v) { o.time_limit_s = to_seconds(n, v[0], false); }},
        {"--sample-ms", {Verb::run}, [](O & o, S n, V v) { o.sample_ms = to_int(n, v[0], 1); }},
        {"--device-ms", {Verb::run}, [](O & o, S n, V v) { o.device_ms = to_int(n, v[0], 1); }},
        {"--probe-s", {Verb::run, Verb::probe}, [](O & o, S n, V v) { o.probe_s = to_seconds(n, v[0], true); }},
        {"--probe-file", {Verb::run, Verb::probe}, [](O & o, S, V v) { o.probe_file = v[0]; }},
        {"--proc-root", {Verb::run, Verb::state, Verb::selftest, Verb::inspect},
         [](O & o, S, V v) { o.proc_root = v[0]; }},
        {"--sys-root", {Verb::run, Verb::state, Verb::selftest, Verb::inspect},
         [](O & o, S, V v) { o.sys_root = v[0]; }},
        {"--env", {Verb::run}, [](O & o, S n, V v) {
             if (v[0].find('=') == std::string::npos || v[0].front() == '=') {
                 throw UsageError(n + " takes NAME=VALUE, not '" + v[0] + "'");
             }
             o.env.push_back(v[0]);
         }},
        {"--cwd", {Verb::run}, [](O & o, S, V v) { o.cwd = v[0]; }},
        {"--detach", {Verb::run}, [](O & o, S, V) { o.detach = true; }, 0},
        {"--log", {Verb::run, Verb::hold}, [](O & o, S, V v) { o.log = v[0]; }},
        {"--lock", {Verb::run, Verb::attend, Verb::hold, Verb::release}, [](O & o, S, V v) { o.lock = v[0]; }},
        {"--beat-file", {Verb::run, Verb::attend, Verb::hold}, [](O & o, S, V v) { o.beat_file = v[0]; }},
        {"--lease-s", {Verb::run, Verb::attend, Verb::hold},
         [](O & o, S n, V v) { o.lease_s = to_seconds(n, v[0], false); }},
        {"--tail", {Verb::attend}, [](O & o, S n, V v) { o.tails.push_back(to_tail(n, v[0], v[1])); }, 2},
        {"--owner", {Verb::hold}, [](O & o, S, V v) { o.owner = v[0]; }},
        {"--while", {Verb::hold}, [](O & o, S, V v) { o.while_lock = v[0]; }},
        {"--token", {Verb::release}, [](O & o, S, V v) { o.token = v[0]; }},
        {"--no-sha256", {Verb::digest}, [](O & o, S, V) { o.no_sha256 = true; }, 0},
    };
    return table;
}

Verb to_verb(const std::string & word) {
    for (const VerbName & known : verb_names) {
        if (word == known.name) {
            return known.verb;
        }
    }
    throw UsageError("unknown command '" + word + "'; " + verbs_there_are);
}

bool takes_paths(Verb verb) {
    return verb == Verb::locked || verb == Verb::end || verb == Verb::evict || verb == Verb::digest;
}

const Rule & find_rule(const std::string & name, Verb verb, const std::string & verb_name) {
    for (const Rule & rule : rules()) {
        if (name != rule.name) {
            continue;
        }
        if (std::find(rule.verbs.begin(), rule.verbs.end(), verb) != rule.verbs.end()) {
            return rule;
        }
        throw UsageError(name + " has no meaning for '" + verb_name + "'");
    }
    if (name.rfind("--", 0) != 0) {
        throw UsageError("unexpected argument '" + name + "'" +
                         (verb == Verb::run ? "; the program to run comes after --" : ""));
    }
    throw UsageError("unknown option " + name);
}

// Options that a verb cannot do without, and those that have a meaning only together.
void check_complete(const Options & o, const std::string & verb_name) {
    const auto need = [&](Verb verb, bool given, const char * what) {
        if (o.verb == verb && !given) {
            throw UsageError(verb_name + " needs " + what);
        }
    };
    const auto together = [&](bool given, bool other, const char * message) {
        if (given && !other) {
            throw UsageError(message);
        }
    };
    need(Verb::run, !o.dir.empty(), "--dir DIR");
    need(Verb::run, !o.program.empty() && !o.program.front().empty(), "a program after --");
    need(Verb::inspect, !o.dir.empty(), "--dir DIR");
    for (const Verb verb : {Verb::attend, Verb::hold, Verb::release}) {
        need(verb, !o.lock.empty(), "--lock FILE");
    }
    for (const Verb verb : {Verb::attend, Verb::hold}) {
        need(verb, !o.beat_file.empty(), "--beat-file FILE");
    }
    need(Verb::hold, !o.owner.empty(), "--owner JSON");
    need(Verb::hold, o.lease_s.has_value(), "--lease-s S");
    need(Verb::hold, !o.while_lock.empty(), "--while FILE");
    need(Verb::hold, !o.log.empty(), "--log FILE");
    need(Verb::release, !o.token.empty(), "--token T");
    for (const Verb verb : {Verb::locked, Verb::end}) {
        need(verb, o.paths.size() == 1, "one FILE");
    }
    for (const Verb verb : {Verb::evict, Verb::digest}) {
        need(verb, !o.paths.empty(), "a path");
    }
    together(!o.cgroup_mode.empty(), o.cgroup_limit_bytes.has_value(), "--cgroup-mode needs --cgroup-limit-bytes N");
    if (o.verb == Verb::run) {
        together(o.detach, !o.log.empty(), "--detach needs --log FILE");
        together(!o.log.empty(), o.detach, "--log needs --detach");
        together(!o.beat_file.empty(), o.lease_s.has_value(), "--beat-file needs --lease-s S");
        together(o.lease_s.has_value(), !o.beat_file.empty(), "--lease-s needs --beat-file FILE");
    }
    need(Verb::selftest, o.data_limit_bytes || o.cgroup_limit_bytes,
         "--data-limit-bytes N or --cgroup-limit-bytes N");
}

}  // namespace

Options parse_options(const std::vector<std::string> & args) {
    if (args.empty()) {
        throw UsageError(std::string("a command is missing; ") + verbs_there_are);
    }
    Options options;
    options.verb = to_verb(args[0]);
    for (size_t at = 1; at < args.size(); ++at) {
        if (args[at] == "--" && (options.verb == Verb::run || takes_paths(options.verb))) {
            auto & rest = options.verb == Verb::run ? options.program : options.paths;
            rest.insert(rest.end(), args.begin() + static_cast<std::ptrdiff_t>(at) + 1, args.end());
            break;
        }
        if (takes_paths(options.verb) && args[at].rfind("--", 0) != 0) {
            options.paths.push_back(args[at]);
            continue;
        }
        const size_t equals = args[at].rfind("--", 0) == 0 ? args[at].find('=') : std::string::npos;
        const std::string name = args[at].substr(0, equals);
        const Rule & rule = find_rule(name, options.verb, args[0]);
        std::vector<std::string> values;
        if (equals != std::string::npos) {
            values.push_back(args[at].substr(equals + 1));
        }
        while (values.size() < rule.values && at + 1 < args.size() && args[at + 1] != "--") {
            values.push_back(args[++at]);
        }
        if (values.size() > rule.values) {
            throw UsageError(name + " takes no value");
        }
        if (values.size() < rule.values || std::count(values.begin(), values.end(), "") != 0) {
            throw UsageError(name + (rule.values > 1 ? " needs two values" : " needs a value"));
        }
        rule.set(options, name, values);
    }
    if (std::count(options.paths.begin(), options.paths.end(), "") != 0) {
        throw UsageError(args[0] + " was given an empty path");
    }
    check_complete(options, args[0]);
    return options;
}

}  // namespace launcher
