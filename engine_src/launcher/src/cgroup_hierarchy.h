// Where this system keeps its cgroups, and where in them a process stands.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace launcher {

// Why a cell cannot have a cgroup of its own, in words for the result.
struct CgroupUnavailable : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct CgroupMount {
    int version = 0;    // 1 or 2
    std::string root;   // of the hierarchy, as far as this mount shows it
    std::string point;  // where it is found
};

// Of the hierarchy that has the controller, or else of version 2, where it may be switched off; from
// <proc_root>/self/mountinfo. A mount point below /sys is sought below sys_root.
std::optional<CgroupMount> find_cgroup_mount(const std::string & controller, const std::string & proc_root,
                                             const std::string & sys_root);

// From the text of a process's /proc/<pid>/cgroup: the path of the line "4:cpu,cpuacct:PATH" or "0::PATH".
std::optional<std::string> cgroup_path(const CgroupMount & mount, const std::string & controller,
                                       std::string_view membership);

// Directories of that cgroup and of those around it, outwards to the root of what is mounted. None when it lies
// outside of that.
std::vector<std::string> cgroups_around(const CgroupMount & mount, const std::string & path);

struct CgroupHierarchy {
    int version = 0;  // 1 or 2
    // Directories below which a cgroup may be made, best first: the launcher's own cgroup, whose limits then go on
    // holding, and outwards from it to the root of what is mounted.
    std::vector<std::string> parents;
};

// From <proc_root>/self/mountinfo and <proc_root>/self/cgroup, of memory. Throws CgroupUnavailable.
CgroupHierarchy find_memory_hierarchy(const std::string & proc_root, const std::string & sys_root);

// Is the word one of those in the text, which blanks, commas or line ends separate?
bool has_word(const std::string & text, const std::string & word);

}  // namespace launcher
