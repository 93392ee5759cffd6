#include "cgroup_hierarchy.h"

#include <fstream>
#include <optional>
#include <sstream>

#include "files.h"

namespace launcher {

namespace {

struct Mount {
    std::string root;   // of the hierarchy, as far as this mount shows it
    std::string point;  // where it is found
};

struct Mounts {
    std::optional<Mount> v1_memory;
    std::optional<Mount> v2;
};

std::string below_sys_root(const std::string & point, const std::string & sys_root) {
    return point.rfind("/sys/", 0) == 0 ? sys_root + point.substr(4) : point;
}

// "35 31 0:32 ROOT POINT rw,relatime [optional]... - TYPE SOURCE SUPER_OPTIONS", see proc(5)
Mounts read_mounts(const std::string & path, const std::string & sys_root) {
    std::ifstream file(path);
    if (!file) {
        throw CgroupUnavailable("cannot read " + path);
    }
    Mounts mounts;
    for (std::string line; std::getline(file, line);) {
        const size_t split = line.find(" - ");
        if (split == std::string::npos) {
            continue;
        }
        std::istringstream place(line.substr(0, split));
        std::istringstream what(line.substr(split + 3));
        std::string skipped, type, source, options;
        Mount mount;
        place >> skipped >> skipped >> skipped >> mount.root >> mount.point;
        what >> type >> source >> options;
        mount.point = below_sys_root(mount.point, sys_root);
        if (type == "cgroup" && has_word(options, "memory") && !mounts.v1_memory) {
            mounts.v1_memory = mount;
        } else if (type == "cgroup2" && !mounts.v2) {
            mounts.v2 = mount;
        }
    }
    return mounts;
}

// The launcher's own cgroup: the path of the line "4:memory:PATH" or "0::PATH".
std::optional<std::string> own_path(const std::string & proc_root, int version) {
    std::ifstream file(proc_root + "/self/cgroup");
    for (std::string line; std::getline(file, line);) {
        const size_t first = line.find(':');
        const size_t second = line.find(':', first == std::string::npos ? first : first + 1);
        if (second == std::string::npos) {
            continue;
        }
        const std::string controllers = line.substr(first + 1, second - first - 1);
        if (version == 1 ? has_word(controllers, "memory") : line.rfind("0::", 0) == 0) {
            return line.substr(second + 1);
        }
    }
    return std::nullopt;
}

std::vector<std::string> places(const Mount & mount, const std::optional<std::string> & own) {
    // Without a cgroup namespace the path counts from the root of the hierarchy, of which a container may be shown
    // only a part. Where the launcher's cgroup is outside of that part, only the mount point is left.
    const std::string hidden = mount.root == "/" ? "" : mount.root;
    const bool shown = own && (*own + "/").compare(0, hidden.size() + 1, hidden + "/") == 0;
    std::string rest = shown ? own->substr(hidden.size()) : "";
    if (rest.rfind("/..", 0) == 0) {
        rest.clear();
    }
    std::vector<std::string> found;
    while (rest.size() > 1) {
        found.push_back(mount.point + rest);
        rest.resize(rest.rfind('/'));
    }
    found.push_back(mount.point);
    return found;
}

}  // namespace

bool has_word(const std::string & text, const std::string & word) {
    std::string words = text;
    for (char & c : words) {
        c = c == ',' || c == '\n' ? ' ' : c;
    }
    return (" " + words + " ").find(" " + word + " ") != std::string::npos;
}

CgroupHierarchy find_memory_hierarchy(const std::string & proc_root, const std::string & sys_root) {
    const Mounts mounts = read_mounts(proc_root + "/self/mountinfo", sys_root);
    // A controller belongs to one hierarchy only; where version 1 has it, version 2 does not.
    if (mounts.v1_memory) {
        return {1, places(*mounts.v1_memory, own_path(proc_root, 1))};
    }
    if (!mounts.v2) {
        throw CgroupUnavailable("no cgroup hierarchy with a memory controller is mounted");
    }
    const std::string controllers = read_text(mounts.v2->point + "/cgroup.controllers").value_or("");
    if (!has_word(controllers, "memory")) {
        throw CgroupUnavailable("the cgroup hierarchy at " + mounts.v2->point + " has no memory controller");
    }
    return {2, places(*mounts.v2, own_path(proc_root, 2))};
}

}  // namespace launcher
