// moe-launcher: starts one cell, limits it, samples it and writes one result file; and what else a host needs done on
// a device. See docs/launcher.md.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "args_file.h"
#include "attend.h"
#include "data_limit.h"
#include "detach.h"
#include "device_lock.h"
#include "device_state.h"
#include "digest.h"
#include "errors.h"
#include "file_lock.h"
#include "inspect.h"
#include "json_writer.h"
#include "memory_cgroup.h"
#include "options.h"
#include "page_cache.h"
#include "print.h"
#include "probe.h"
#include "run.h"
#include "signals.h"

namespace launcher {
namespace {

int print_selftest(const Options & options) {
    const Signals held_back(Signals::Parent::watched);  // a stop must not leave a cgroup behind
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

int print_probe(const Options & options) {
    Signals signals(Signals::Parent::watched);
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

bool nobody_listens() {
    pollfd out{STDOUT_FILENO, 0, 0};
    return poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

int print_digest(const Options & options) {
    Signals signals(Signals::Parent::watched);
    const auto answer = digest_json(options, [&] { return signals.stop_asked() || nobody_listens(); });
    if (!answer) {
        const std::string why = signals.reason().empty() ? "nobody listens any more" : signals.reason();
        std::fprintf(stderr, "moe-launcher: no digest: %s\n", why.c_str());
        return exit_other;
    }
    print(*answer);
    return exit_ok;
}

int print_page_cache(const Options & options) {
    JsonWriter json;
    write_json(json, evict_from_page_cache(options.paths));
    print(json.text() + "\n");
    return exit_ok;
}

int print_locked(const Options & options) {
    JsonWriter json;
    json.begin_object().field("locked", is_locked(options.paths.front())).end_object();
    print(json.text() + "\n");
    return exit_ok;
}

int end_holders(const Options & options) {
    int64_t ended = 0;
    for (const pid_t pid : lock_holders(options.paths.front())) {
        ended += kill(pid, SIGTERM) == 0 ? 1 : 0;
    }
    JsonWriter json;
    json.begin_object().field("ended", ended).end_object();
    print(json.text() + "\n");
    return exit_ok;
}

void run_with(const Options & options, Signals::Parent parent, const std::function<void()> & ready) {
    Signals signals(parent);
    std::optional<Lease> lease;
    if (options.lease_s) {
        lease.emplace(options.beat_file, *options.lease_s);
    }
    Stop stop(signals, lease);
    run(options, stop, ready);
}

int run_cell_here_or_detached(const Options & options) {
    if (!options.detach) {
        run_with(options, Signals::Parent::watched, [] {});
        return exit_ok;
    }
    Detachment detachment;
    if (detachment.in_child()) {
        run_with(options, Signals::Parent::ignored, [&] { detachment.ready(options.log); });
        return exit_ok;
    }
    if (!detachment.wait_until_ready()) {
        return detachment.exit_code();
    }
    JsonWriter json;
    json.begin_object().field("pid", static_cast<int64_t>(detachment.child())).end_object();
    print(json.text() + "\n");
    return exit_ok;
}

int act(const Options & options) {
    switch (options.verb) {
        case Verb::version: print(std::string("moe-launcher ") + MOE_LAUNCHER_VERSION + "\n"); return exit_ok;
        case Verb::help: print(usage_text); return exit_ok;
        case Verb::run: return run_cell_here_or_detached(options);
        case Verb::probe: return print_probe(options);
        case Verb::state: return print_state(options);
        case Verb::selftest: return print_selftest(options);
        case Verb::attend: attend(options); return exit_ok;
        case Verb::hold: return hold(options);
        case Verb::release: return release(options);
        case Verb::locked: return print_locked(options);
        case Verb::end: return end_holders(options);
        case Verb::evict: return print_page_cache(options);
        case Verb::digest: return print_digest(options);
        case Verb::inspect: print(inspect_json(options)); return exit_ok;
    }
    return exit_other;
}

// A file that took the number of a closed stream would receive what is meant for the stream.
void fill_closed_streams() {
    int fd = 0;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    close(fd);
}

int tell(const std::exception & error, const char * more, int exit_code) {
    std::fprintf(stderr, "moe-launcher: %s%s\n", error.what(), more);
    return exit_code;
}

}  // namespace
}  // namespace launcher

int main(int argc, char ** argv) {
    using namespace launcher;
    fill_closed_streams();
    try {
        return act(parse_options(read_args(std::vector<std::string>(argv + 1, argv + argc))));
    } catch (const UsageError & error) {
        return tell(error, " (--help shows the usage)", exit_usage);
    } catch (const OutputError & error) {
        return tell(error, "", exit_output);
    } catch (const LockHeld & error) {
        return tell(error, "", exit_held);
    } catch (const std::exception & error) {
        return tell(error, "", exit_other);
    }
}
