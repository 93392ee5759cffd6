// A cgroup for one cell that limits all memory charged to it, page cache included. Made before the program is
// started, entered by the program alone, and removed with the cell.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cgroup_hierarchy.h"
#include "unique_fd.h"

namespace launcher {

// Making and removing a cgroup: what a plain directory tree cannot stand in for, because the kernel fills a new
// cgroup with its files and lets it go with them. Both give 0 or errno. Tests bring their own.
struct CgroupDirs {
    virtual ~CgroupDirs() = default;
    virtual int make(const std::string & path);
    virtual int remove(const std::string & path);
};

// Empty: this kernel does not say.
struct CgroupUsage {
    std::optional<int64_t> peak_bytes;
    std::optional<int64_t> failcnt;  // how often the limit was met
    std::optional<int64_t> oom_kills;
};

class MemoryCgroup {
public:
    // Below the first parent that allows it. Throws CgroupUnavailable with what stood in the way at each.
    MemoryCgroup(const CgroupHierarchy & hierarchy, int64_t limit_bytes, CgroupDirs & dirs);
    MemoryCgroup(const MemoryCgroup &) = delete;
    MemoryCgroup & operator=(const MemoryCgroup &) = delete;
    ~MemoryCgroup() { release(); }

    const std::string & path() const { return path_; }
    int64_t limit_bytes() const { return limit_bytes_; }    // as the kernel took it
    bool swap_limited() const { return swap_limited_; }     // nothing beyond the limit can go to swap
    int entrance() const { return entrance_.get(); }        // a process that writes "0" to it is inside
    CgroupUsage usage() const;

    // Lets go of its page cache and removes it; what is still inside is killed. False: it could not be removed.
    bool release();

private:
    void make_below(const CgroupHierarchy & hierarchy, size_t parent, int64_t limit_bytes);
    void set_limit(int64_t limit_bytes);
    void check_limit(const CgroupHierarchy & hierarchy, size_t parent, int64_t limit_bytes);
    void try_entrance() const;
    std::string file(const std::string & name) const { return path_ + "/" + name; }

    CgroupDirs & dirs_;
    int version_;
    std::string path_;  // empty: none, or removed
    UniqueFd lock_;
    UniqueFd entrance_;
    int64_t limit_bytes_ = 0;
    bool swap_limited_ = false;
};

// Removes cgroups that launchers which were killed outright left below these directories, with what still runs in
// them. One whose launcher lives is left alone, and so is one that another process has taken the number of.
void remove_stale_cgroups(const CgroupHierarchy & hierarchy, CgroupDirs & dirs);

}  // namespace launcher
