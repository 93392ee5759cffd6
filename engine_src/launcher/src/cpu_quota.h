// How long a CPU quota held the cgroups of a process back, wherever it moved while it ran.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cgroup_hierarchy.h"
#include "unique_fd.h"

namespace launcher {

// From a cpu.stat: throttled_time (version 1, ns) or throttled_usec (version 2). Without either no quota can be set
// there (the root of version 2, a cgroup without the controller): 0. Empty: there is no text.
std::optional<int64_t> parse_throttled_ns(std::string_view cpu_stat);

class ThrottledTime {
public:
    // Where cgroups are: from <proc_root>/self/mountinfo, below sys_root. Where the process is: from
    // <process_root>/<pid>/cgroup, of the real /proc, for the process is real; only tests name another.
    ThrottledTime(pid_t pid, const std::string & proc_root, const std::string & sys_root,
                  const std::string & process_root = "/proc");

    // Follows the process; what happened in a new cgroup before this call does not count.
    void sample();

    // Since the first sample, summed over the cores on which the cgroup was held back. Of the process's cgroup and
    // those around it, the one that was held back longest counts. Empty where one of the places it was in could not
    // be read.
    std::optional<int64_t> total_ns();

private:
    struct Level {
        UniqueFd stat;
        int64_t first_ns;
    };

    std::optional<int64_t> since_entered_ns();
    void enter(const std::string & path);

    std::optional<CgroupMount> mount_;
    UniqueFd membership_;
    std::optional<std::string> path_;  // where the process was last seen
    std::vector<Level> levels_;        // that cgroup and those around it, as far as they count
    int64_t before_ns_ = 0;            // in cgroups that the process has left
    bool unknown_ = false;             // one of those did not count
    char buffer_[4096];
};

}  // namespace launcher
