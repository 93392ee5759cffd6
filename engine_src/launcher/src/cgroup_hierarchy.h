// Where this system keeps its memory cgroups, and where in them the launcher stands.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace launcher {

// Why a cell cannot have a cgroup of its own, in words for the result.
struct CgroupUnavailable : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct CgroupHierarchy {
    int version = 0;  // 1 or 2
    // Directories below which a cgroup may be made, best first: the launcher's own cgroup, whose limits then go on
    // holding, and outwards from it to the root of what is mounted.
    std::vector<std::string> parents;
};

// From <proc_root>/self/mountinfo and <proc_root>/self/cgroup; a mount point below /sys is sought below sys_root.
// Throws CgroupUnavailable.
CgroupHierarchy find_memory_hierarchy(const std::string & proc_root, const std::string & sys_root);

// Is the word one of those in the text, which blanks, commas or line ends separate?
bool has_word(const std::string & text, const std::string & word);

}  // namespace launcher
