#include "cgroup_hierarchy.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "files.h"

namespace launcher {

namespace {

std::string below_sys_root(const std::string & point, const std::string & sys_root) {
    return point.rfind("/sys/", 0) == 0 ? sys_root + point.substr(4) : point;
}

}  // namespace

// "35 31 0:32 ROOT POINT rw,relatime [optional]... - TYPE SOURCE SUPER_OPTIONS", see proc(5)
std::optional<CgroupMount> find_cgroup_mount(const std::string & controller, const std::string & proc_root,
                                             const std::string & sys_root) {
    std::ifstream file(proc_root + "/self/mountinfo");
    std::optional<CgroupMount> version_2;
    for (std::string line; std::getline(file, line);) {
        const size_t split = line.find(" - ");
        if (split == std::string::npos) {
            continue;
        }
        std::istringstream place(line.substr(0, split));
        std::istringstream what(line.substr(split + 3));
        std::string skipped, type, source, options;
        CgroupMount mount;
        place >> skipped >> skipped >> skipped >> mount.root >> mount.point;
        what >> type >> source >> options;
        mount.point = below_sys_root(mount.point, sys_root);
        // A controller belongs to one hierarchy only; where version 1 has it, version 2 does not.
        if (type == "cgroup" && has_word(options, controller)) {
            mount.version = 1;
            return mount;
        }
        if (type == "cgroup2" && !version_2) {
            mount.version = 2;
            version_2 = mount;
        }
    }
    return version_2;
}

std::optional<std::string> cgroup_path(const CgroupMount & mount, const std::string & controller,
                                       std::string_view membership) {
    std::istringstream lines{std::string(membership)};
    for (std::string line; std::getline(lines, line);) {
        const size_t first = line.find(':');
        const size_t second = line.find(':', first == std::string::npos ? first : first + 1);
        if (second == std::string::npos) {
            continue;
        }
        const std::string controllers = line.substr(first + 1, second - first - 1);
        if (mount.version == 1 ? has_word(controllers, controller) : line.rfind("0::", 0) == 0) {
            return line.substr(second + 1);
        }
    }
    return std::nullopt;
}

std::vector<std::string> cgroups_around(const CgroupMount & mount, const std::string & path) {
    // Without a cgroup namespace the path counts from the root of the hierarchy, of which a container may be shown
    // only a part.
    const std::string hidden = mount.root == "/" ? "" : mount.root;
    const bool is_shown = (path + "/").compare(0, hidden.size() + 1, hidden + "/") == 0;
    std::string rest = is_shown ? path.substr(hidden.size()) : "";
    if (!is_shown || rest.rfind("/..", 0) == 0) {
        return {};
    }
    std::vector<std::string> found;
    while (rest.size() > 1) {
        found.push_back(mount.point + rest);
        rest.resize(rest.rfind('/'));
    }
    found.push_back(mount.point);
    return found;
}

bool has_word(const std::string & text, const std::string & word) {
    std::string words = text;
    for (char & c : words) {
        c = c == ',' || c == '\n' ? ' ' : c;
    }
    return (" " + words + " ").find(" " + word + " ") != std::string::npos;
}

CgroupHierarchy find_memory_hierarchy(const std::string & proc_root, const std::string & sys_root) {
    if (!read_text(proc_root + "/self/mountinfo")) {
        throw CgroupUnavailable("cannot read " + proc_root + "/self/mountinfo");
    }
    const auto mount = find_cgroup_mount("memory", proc_root, sys_root);
    if (!mount) {
        throw CgroupUnavailable("no cgroup hierarchy with a memory controller is mounted");
    }
    if (mount->version == 2) {
        const std::string controllers = read_text(mount->point + "/cgroup.controllers").value_or("");
        if (!has_word(controllers, "memory")) {
            throw CgroupUnavailable("the cgroup hierarchy at " + mount->point + " has no memory controller");
        }
    }
    const std::string membership = read_text(proc_root + "/self/cgroup").value_or("");
    const auto own = cgroup_path(*mount, "memory", membership);
    std::vector<std::string> parents = cgroups_around(*mount, own.value_or(mount->root));
    if (parents.empty()) {
        parents.push_back(mount->point);  // the launcher's own is outside of what is mounted
    }
    return {mount->version, std::move(parents)};
}

}  // namespace launcher
