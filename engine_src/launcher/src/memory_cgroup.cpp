#include "memory_cgroup.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <sstream>

#include "clocks.h"
#include "files.h"

namespace launcher {

namespace {

constexpr const char * name_prefix = "moe-launcher-";

[[noreturn]] void fail(const std::string & what, int error) {
    throw CgroupUnavailable(what + ": " + std::strerror(error));
}

// 0 or errno. Never creates: a file that the kernel did not make limits nothing.
int write_text(const std::string & path, const std::string & text) {
    const UniqueFd fd(open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
    if (!fd) {
        return errno;
    }
    return write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : errno;
}

bool exists(const std::string & path) {
    return access(path.c_str(), F_OK) == 0;
}

// The lock says that the launcher of this cgroup lives, to launchers of every process-id namespace.
UniqueFd lock_directory(const std::string & path) {
    UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd && flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
        fd.reset();
    }
    return fd;
}

// Only processes that themselves say they are in it, for a number may have passed on, and a made-up device has none.
void kill_members(const std::string & path) {
    const std::string own_name = path.substr(path.rfind('/')) + "\n";
    std::istringstream members(read_text(path + "/cgroup.procs").value_or(""));
    for (int64_t pid = 0; members >> pid;) {
        const std::string says = read_text("/proc/" + std::to_string(pid) + "/cgroup").value_or("");
        if (pid > 1 && says.find(own_name) != std::string::npos) {
            kill(static_cast<pid_t>(pid), SIGKILL);
        }
    }
}

// Page cache that stayed would be free of charge for the next cell, and keep the removed cgroup in the kernel. As
// much as goes; the kernel answers with an error when something is left.
void drop_page_cache(const std::string & path) {
    if (exists(path + "/memory.force_empty")) {
        write_text(path + "/memory.force_empty", "0");
    } else if (const auto used = read_value(path + "/memory.current")) {
        write_text(path + "/memory.reclaim", *used);
    }
}

bool remove_cgroup(const std::string & path, CgroupDirs & dirs) {
    constexpr int64_t poll_ns = 10 * 1000000LL;
    constexpr int64_t patience_ns = 2 * 1000000000LL;
    const int64_t deadline_ns = monotonic_ns() + patience_ns;
    drop_page_cache(path);
    for (;;) {
        const int error = dirs.remove(path);
        if (error == 0 || error == ENOENT) {
            return true;
        }
        if (error != EBUSY || monotonic_ns() > deadline_ns) {
            return false;
        }
        kill_members(path);
        sleep_ns(poll_ns);
    }
}

}  // namespace

int CgroupDirs::make(const std::string & path) {
    return mkdir(path.c_str(), 0755) == 0 ? 0 : errno;
}

int CgroupDirs::remove(const std::string & path) {
    return rmdir(path.c_str()) == 0 ? 0 : errno;
}

MemoryCgroup::MemoryCgroup(const CgroupHierarchy & hierarchy, int64_t limit_bytes, CgroupDirs & dirs)
    : dirs_(dirs), version_(hierarchy.version) {
    std::string reasons;
    for (size_t parent = 0; parent < hierarchy.parents.size(); ++parent) {
        try {
            make_below(hierarchy, parent, limit_bytes);
            return;
        } catch (const CgroupUnavailable & error) {
            release();
            reasons += (reasons.empty() ? "" : "; ") + hierarchy.parents[parent] + ": " + error.what();
        }
    }
    throw CgroupUnavailable(reasons);
}

void MemoryCgroup::make_below(const CgroupHierarchy & hierarchy, size_t parent, int64_t limit_bytes) {
    const std::string & directory = hierarchy.parents[parent];
    // Switching the controller on would change the machine for others, and is refused where processes are.
    if (version_ == 2 && !has_word(read_text(directory + "/cgroup.subtree_control").value_or(""), "memory")) {
        throw CgroupUnavailable("memory is not in its cgroup.subtree_control");
    }
    const std::string path = directory + "/" + name_prefix + std::to_string(getpid());
    if (const int error = dirs_.make(path)) {
        fail("cannot make a cgroup", error);
    }
    path_ = path;
    lock_ = lock_directory(path_);
    set_limit(limit_bytes);
    check_limit(hierarchy, parent, limit_bytes);
    entrance_.reset(open(file("cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
    if (!entrance_) {
        fail("cannot open cgroup.procs", errno);
    }
    try_entrance();
}

void MemoryCgroup::set_limit(int64_t limit_bytes) {
    const std::string text = std::to_string(limit_bytes);
    const std::string limit = version_ == 1 ? "memory.limit_in_bytes" : "memory.max";
    if (const int error = write_text(file(limit), text)) {
        fail("cannot set " + limit, error);
    }
    // Memory and swap together in version 1, swap alone in version 2; absent where the kernel does not account swap.
    const std::string swap = version_ == 1 ? "memory.memsw.limit_in_bytes" : "memory.swap.max";
    if (exists(file(swap))) {
        if (const int error = write_text(file(swap), version_ == 1 ? text : "0")) {
            fail("cannot set " + swap, error);
        }
        swap_limited_ = true;
    } else {
        write_text(file("memory.swappiness"), "0");  // at least its own limit then drives nothing into swap
    }
    // Inherited; the program would wait for memory forever instead of being killed.
    if (read_text(file("memory.oom_control")).value_or("").rfind("oom_kill_disable 1", 0) == 0) {
        if (const int error = write_text(file("memory.oom_control"), "0")) {
            fail("cannot set memory.oom_control", error);
        }
    }
}

void MemoryCgroup::check_limit(const CgroupHierarchy & hierarchy, size_t parent, int64_t limit_bytes) {
    const auto own = read_int(file(version_ == 1 ? "memory.limit_in_bytes" : "memory.max"));
    // The kernel counts in pages and rounds down.
    if (!own || *own > limit_bytes || *own <= limit_bytes - sysconf(_SC_PAGESIZE)) {
        throw CgroupUnavailable("the limit did not stay as it was set");
    }
    limit_bytes_ = *own;
    int64_t enclosing = INT64_MAX;
    if (version_ == 1) {
        const std::string stat = read_text(file("memory.stat")).value_or("");
        enclosing = int_after(stat, "hierarchical_memory_limit ").value_or(enclosing);
    } else {
        for (size_t at = parent; at < hierarchy.parents.size(); ++at) {
            enclosing = std::min(enclosing, read_int(hierarchy.parents[at] + "/memory.max").value_or(enclosing));
        }
    }
    if (enclosing < limit_bytes_) {
        throw CgroupUnavailable("an enclosing cgroup allows only " + std::to_string(enclosing) + " bytes");
    }
}

// Rights to move a process depend on more than the file's own, so a child tries it.
void MemoryCgroup::try_entrance() const {
    const pid_t child = fork();
    if (child < 0) {
        fail("cannot fork to try it", errno);
    }
    if (child == 0) {
        _exit(write(entrance_.get(), "0", 1) == 1 ? 0 : errno);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) {
            fail("cannot wait for the process that tries it", errno);
        }
    }
    if (!WIFEXITED(status)) {
        throw CgroupUnavailable("a process of a few pages was killed in it; is the limit too small?");
    }
    if (WEXITSTATUS(status) != 0) {
        fail("no process may enter it", WEXITSTATUS(status));
    }
}

CgroupUsage MemoryCgroup::usage() const {
    CgroupUsage usage;
    if (version_ == 1) {
        usage.peak_bytes = read_int(file("memory.max_usage_in_bytes"));
        usage.failcnt = read_int(file("memory.failcnt"));
        if (usage.failcnt && swap_limited_) {
            // Of two equal limits the kernel asks that of memory and swap first, and some kernels (6.18) do not count
            // how often that one was met: nought then says nothing.
            const int64_t met = *usage.failcnt + read_int(file("memory.memsw.failcnt")).value_or(0);
            usage.failcnt = met > 0 ? std::optional(met) : std::nullopt;
        }
        usage.oom_kills = int_after(read_text(file("memory.oom_control")).value_or(""), "\noom_kill ");
    } else {
        const std::string events = read_text(file("memory.events")).value_or("");
        usage.peak_bytes = read_int(file("memory.peak"));
        usage.failcnt = int_after(events, "\nmax ");
        usage.oom_kills = int_after(events, "\noom_kill ");
    }
    return usage;
}

bool MemoryCgroup::release() {
    if (path_.empty()) {
        return true;
    }
    const bool removed = remove_cgroup(path_, dirs_);
    entrance_.reset();
    lock_.reset();
    path_.clear();
    return removed;
}

void remove_stale_cgroups(const CgroupHierarchy & hierarchy, CgroupDirs & dirs) {
    for (const std::string & parent : hierarchy.parents) {
        for (const std::string & name : list_names(parent, name_prefix)) {
            const std::string number = name.substr(std::strlen(name_prefix));
            const auto pid = parse_int(number);
            if (!pid || *pid <= 1 || *pid > std::numeric_limits<pid_t>::max() || std::to_string(*pid) != number) {
                continue;  // not one of ours
            }
            const bool gone = *pid == getpid() || (kill(static_cast<pid_t>(*pid), 0) != 0 && errno == ESRCH);
            const std::string path = parent + "/" + name;
            if (const UniqueFd lock = gone ? lock_directory(path) : UniqueFd()) {
                remove_cgroup(path, dirs);
            }
        }
    }
}

}  // namespace launcher
