#include "process_tree.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "clocks.h"
#include "files.h"

namespace launcher {

namespace {

// The state letter would not do: it is Z also while the first thread has ended and others go on.
bool waits_to_be_collected(pid_t child) {
    siginfo_t ended{};
    return waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid == child;
}

std::set<pid_t> living_children() {
    std::set<pid_t> children;
    const pid_t self = getpid();
    char buffer[1024];
    for (const std::string & name : list_names("/proc", "")) {
        const auto pid = parse_int(name);
        if (!pid) {
            continue;
        }
        const UniqueFd fd = open_to_read("/proc/" + name + "/stat");
        const std::string_view text = read_again(fd.get(), buffer, sizeof buffer);
        // "12 (name) S 7 ...": state and parent follow the name
        const size_t name_end = text.rfind(')');
        if (name_end == std::string_view::npos || text.size() < name_end + 5) {
            continue;
        }
        if (parse_int(text.substr(name_end + 4)) == self && !waits_to_be_collected(static_cast<pid_t>(*pid))) {
            children.insert(static_cast<pid_t>(*pid));
        }
    }
    return children;
}

}  // namespace

ProcessTree::ProcessTree() : not_ours_(living_children()) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

bool ProcessTree::has_ended(pid_t program) {
    for (;;) {
        siginfo_t ended{};
        if (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0) {
            return false;
        }
        if (ended.si_pid == program) {
            return true;
        }
        waitpid(ended.si_pid, nullptr, WNOHANG);
    }
}

std::set<pid_t> ProcessTree::living_orphans(pid_t program) const {
    std::set<pid_t> orphans = living_children();
    orphans.erase(program);
    for (const pid_t pid : not_ours_) {
        orphans.erase(pid);
    }
    return orphans;
}

void ProcessTree::signal_all(pid_t program, int signal) {
    kill(-program, signal);
    for (const pid_t orphan : living_orphans(program)) {
        kill(orphan, signal);
    }
}

ProcessTree::Sweep ProcessTree::end_rest(pid_t program, int64_t kill_at_ns) {
    constexpr int64_t poll_ns = 10 * 1000000LL;
    constexpr int64_t patience_ns = 5 * 1000000000LL;  // beyond which a killed process counts as stuck
    std::set<pid_t> seen;
    std::set<pid_t> asked;
    for (;;) {
        const std::set<pid_t> orphans = living_orphans(program);
        seen.insert(orphans.begin(), orphans.end());
        const int64_t now = monotonic_ns();
        // When no child lives there is no deeper process either: it would have been handed to us.
        if (orphans.empty() || now > kill_at_ns + patience_ns) {
            for (const pid_t pid : seen) {
                waitpid(pid, nullptr, WNOHANG);
            }
            return {seen.size(), orphans.size()};
        }
        if (now >= kill_at_ns) {
            kill(-program, SIGKILL);
        }
        for (const pid_t orphan : orphans) {
            if (now >= kill_at_ns) {
                kill(orphan, SIGKILL);
            } else if (asked.insert(orphan).second) {
                kill(orphan, SIGTERM);
            }
        }
        sleep_ns(poll_ns);
    }
}

}  // namespace launcher
