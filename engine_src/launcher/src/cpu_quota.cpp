#include "cpu_quota.h"

#include <algorithm>

#include "files.h"

namespace launcher {

namespace {
constexpr const char * controller = "cpu";
}

std::optional<int64_t> parse_throttled_ns(std::string_view cpu_stat) {
    if (cpu_stat.empty()) {
        return std::nullopt;
    }
    if (const auto ns = int_after(cpu_stat, "\nthrottled_time ")) {
        return ns;
    }
    return int_after(cpu_stat, "\nthrottled_usec ").value_or(0) * 1000;
}

ThrottledTime::ThrottledTime(pid_t pid, const std::string & proc_root, const std::string & sys_root,
                             const std::string & process_root)
    : mount_(find_cgroup_mount(controller, proc_root, sys_root)),
      membership_(open_to_read(process_root + "/" + std::to_string(pid) + "/cgroup")) {}

void ThrottledTime::sample() {
    if (!mount_) {
        return;
    }
    const auto path = cgroup_path(*mount_, controller, read_again(membership_.get(), buffer_, sizeof buffer_));
    // Version 1 shows a process that is ending in the root, wherever it was.
    const bool is_ending = mount_->version == 1 && path == "/" && path_;
    if (!path || path == path_ || is_ending) {
        return;
    }
    if (path_) {
        const auto ns = since_entered_ns();
        before_ns_ += ns.value_or(0);
        unknown_ = unknown_ || !ns;
    }
    path_ = path;
    enter(*path);
}

void ThrottledTime::enter(const std::string & path) {
    levels_.clear();
    for (const std::string & dir : cgroups_around(*mount_, path)) {
        UniqueFd stat = open_to_read(dir + "/cpu.stat");
        if (const auto ns = parse_throttled_ns(read_again(stat.get(), buffer_, sizeof buffer_))) {
            levels_.push_back({std::move(stat), *ns});
        }
    }
}

std::optional<int64_t> ThrottledTime::since_entered_ns() {
    std::optional<int64_t> longest_ns;
    for (const Level & level : levels_) {
        if (const auto ns = parse_throttled_ns(read_again(level.stat.get(), buffer_, sizeof buffer_))) {
            longest_ns = std::max(longest_ns.value_or(0), *ns - level.first_ns);
        }
    }
    return longest_ns;
}

std::optional<int64_t> ThrottledTime::total_ns() {
    const auto ns = since_entered_ns();
    return ns && !unknown_ ? std::optional<int64_t>(before_ns_ + *ns) : std::nullopt;
}

}  // namespace launcher
