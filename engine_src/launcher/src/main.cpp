// moe-launcher: starts one cell, limits it, samples it and writes one result file. See docs/launcher.md.
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "data_limit.h"
#include "device_state.h"
#include "errors.h"
#include "json_writer.h"
#include "memory_cgroup.h"
#include "options.h"
#include "probe.h"
#include "run.h"
#include "signals.h"

namespace launcher {
namespace {

void print(const std::string & text) {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
        throw OutputError("cannot write to standard output");
    }
}

int print_selftest(const Options & options) {
    std::optional<LimitTest> data;
    if (options.data_limit_bytes) {
        data = test_data_limit(*options.data_limit_bytes);
    }
    std::optional<std::string> cgroup_reason;
    if (options.cgroup_limit_bytes) {
        try {
            CgroupDirs dirs;
            const MemoryCgroup removed_at_once(find_memory_hierarchy(options.proc_root, options.sys_root),
                                               *options.cgroup_limit_bytes, dirs);
        } catch (const CgroupUnavailable & error) {
            cgroup_reason = error.what();
        }
    }
    JsonWriter json;
    json.begin_object().field("data_limit_bytes", options.data_limit_bytes);
    json.field("data_limit_enforced", data ? std::optional(data->enforced) : std::nullopt);
    json.field("detail", data ? std::optional(data->detail) : std::nullopt);
    json.field("cgroup_limit_bytes", options.cgroup_limit_bytes);
    json.field("cgroup_available", options.cgroup_limit_bytes ? std::optional(!cgroup_reason) : std::nullopt);
    json.field("cgroup_reason", cgroup_reason).end_object();
    print(json.text() + "\n");
    return (data && !data->enforced) || cgroup_reason ? exit_not_enforced : exit_ok;
}

int print_probe(const Options & options, Signals & signals) {
    const auto probe = run_probe(options.probe_s, options.probe_file, [&] { return signals.stop_asked(); });
    if (!probe) {
        std::fprintf(stderr, "moe-launcher: no probe: %s\n", signals.reason().c_str());
        return exit_other;
    }
    JsonWriter json;
    write_json(json, *probe);
    print(json.text() + "\n");
    return exit_ok;
}

int print_state(const Options & options) {
    JsonWriter json;
    write_json(json, read_device_state(options.proc_root, options.sys_root));
    print(json.text() + "\n");
    return exit_ok;
}

int act(const Options & options) {
    if (options.verb == Verb::version) {
        print(std::string("moe-launcher ") + MOE_LAUNCHER_VERSION + "\n");
        return exit_ok;
    }
    if (options.verb == Verb::help) {
        print(usage_text);
        return exit_ok;
    }
    Signals signals;
    switch (options.verb) {
        case Verb::probe: return print_probe(options, signals);
        case Verb::state: return print_state(options);
        case Verb::selftest: return print_selftest(options);
        default: run(options, signals); return exit_ok;
    }
}

}  // namespace
}  // namespace launcher

int main(int argc, char ** argv) {
    try {
        return launcher::act(launcher::parse_options(std::vector<std::string>(argv + 1, argv + argc)));
    } catch (const launcher::UsageError & error) {
        std::fprintf(stderr, "moe-launcher: %s (--help shows the usage)\n", error.what());
        return launcher::exit_usage;
    } catch (const launcher::OutputError & error) {
        std::fprintf(stderr, "moe-launcher: %s\n", error.what());
        return launcher::exit_output;
    } catch (const std::exception & error) {
        std::fprintf(stderr, "moe-launcher: %s\n", error.what());
        return launcher::exit_other;
    }
}
