#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "check.h"
#include "memory_cgroup.h"

using launcher::CgroupHierarchy;
using launcher::CgroupUnavailable;
using launcher::find_memory_hierarchy;
using launcher::MemoryCgroup;
using launcher::remove_stale_cgroups;

namespace fs = std::filesystem;

namespace {

// Does what the kernel does: a new cgroup has its files at once, and they go with it.
struct MadeUpKernel : launcher::CgroupDirs {
    std::vector<std::pair<std::string, std::string>> files;
    int busy = 0;  // refusals before a cgroup can be removed
    int removals = 0;

    int make(const std::string & path) override {
        if (const int error = CgroupDirs::make(path)) {
            return error;
        }
        for (const auto & [name, text] : files) {
            write(path + "/" + name, text);
        }
        return 0;
    }
    int remove(const std::string & path) override {
        if (busy > 0) {
            --busy;
            return EBUSY;
        }
        ++removals;
        fs::remove_all(path);
        return 0;
    }
    static void write(const std::string & path, const std::string & text) {
        FILE * const file = std::fopen(path.c_str(), "w");
        std::fwrite(text.data(), 1, text.size(), file);
        std::fclose(file);
    }
};

MadeUpKernel version_2() {
    MadeUpKernel kernel;
    kernel.files = {{"cgroup.procs", ""},   {"memory.max", "max\n"},          {"memory.swap.max", "max\n"},
                    {"memory.peak", "0\n"}, {"memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n"}};
    return kernel;
}

std::string named_for(pid_t pid) {
    return "moe-launcher-" + std::to_string(pid);
}

// A process number that nobody has.
pid_t dead_pid() {
    const pid_t child = fork();
    if (child == 0) {
        _exit(0);
    }
    waitpid(child, nullptr, 0);
    return child;
}

std::string refusal(const CgroupHierarchy & hierarchy, int64_t limit_bytes, launcher::CgroupDirs & dirs) {
    return check::message_of<CgroupUnavailable>([&] { MemoryCgroup(hierarchy, limit_bytes, dirs); });
}

const char * const v1_mount = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";
const char * const v2_mount = "41 31 0:38 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw\n";

}  // namespace

TEST(the_memory_controller_is_found_in_version_1) {
    const check::TempDir dir;
    dir.write("proc/self/mountinfo", std::string(v2_mount) + "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n" + v1_mount);
    dir.write("proc/self/cgroup", "5:devices:/x\n4:hugetlb,memory:/a/b\n0::/y\n");
    const auto found = find_memory_hierarchy(dir.path("proc"), dir.path("sys"));
    EQUAL(found.version, 1);
    EQUAL(found.parents.size(), size_t{3});
    EQUAL(found.parents[0], dir.path("sys/fs/cgroup/memory/a/b"));
    EQUAL(found.parents[2], dir.path("sys/fs/cgroup/memory"));
}

TEST(the_memory_controller_is_found_in_version_2) {
    const check::TempDir dir;
    dir.write("proc/self/mountinfo", v2_mount);
    dir.write("proc/self/cgroup", "0::/user.slice/session\n");
    dir.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n");
    const auto found = find_memory_hierarchy(dir.path("proc"), dir.path("sys"));
    EQUAL(found.version, 2);
    EQUAL(found.parents.front(), dir.path("sys/fs/cgroup/user.slice/session"));
    EQUAL(found.parents.back(), dir.path("sys/fs/cgroup"));
}

TEST(of_a_hierarchy_that_a_container_sees_in_part_only_that_part_is_used) {
    const check::TempDir dir;
    const auto first_place = [&](const std::string & own) {
        dir.write("proc/self/mountinfo", "35 31 0:32 /box/ab /mnt/memory rw - cgroup cgroup rw,memory\n");
        dir.write("proc/self/cgroup", "4:memory:" + own + "\n");
        return find_memory_hierarchy(dir.path("proc"), dir.path("sys")).parents.front();
    };
    EQUAL(first_place("/box/ab/inner"), "/mnt/memory/inner");  // not below /sys: where it says
    EQUAL(first_place("/box/ab"), "/mnt/memory");
    EQUAL(first_place("/box/abc"), "/mnt/memory");
    EQUAL(first_place("/elsewhere"), "/mnt/memory");
}

TEST(where_there_is_no_memory_controller_it_is_said) {
    const check::TempDir dir;
    const auto why = [&] {
        return check::message_of<CgroupUnavailable>(
            [&] { find_memory_hierarchy(dir.path("proc"), dir.path("sys")); });
    };
    EQUAL(why(), "cannot read " + dir.path("proc/self/mountinfo"));
    dir.write("proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda rw,memory\n");
    EQUAL(why(), "no cgroup hierarchy with a memory controller is mounted");
    dir.write("proc/self/mountinfo", v2_mount);
    dir.write("sys/fs/cgroup/cgroup.controllers", "cpu io\n");
    EQUAL(why(), "the cgroup hierarchy at " + dir.path("sys/fs/cgroup") + " has no memory controller");
}

TEST(a_cgroup_of_version_2_is_limited_entered_read_and_removed) {
    const check::TempDir dir;
    dir.write("root/cgroup.subtree_control", "cpu memory\n");
    MadeUpKernel kernel = version_2();
    const std::string path = "root/" + named_for(getpid());
    {
        // The launcher's own cgroup holds a process and so hands on no controller; the next one does.
        dir.write("root/own/cgroup.subtree_control", "\n");
        MemoryCgroup cgroup({2, {dir.path("root/own"), dir.path("root")}}, 1 << 20, kernel);
        EQUAL(cgroup.path(), dir.path(path));
        EQUAL(cgroup.limit_bytes(), int64_t{1 << 20});
        THAT(cgroup.swap_limited());
        EQUAL(dir.read(path + "/memory.max"), "1048576");
        EQUAL(dir.read(path + "/memory.swap.max"), "0");
        EQUAL(dir.read(path + "/cgroup.procs"), "0");  // by the child that tried it
        dir.write(path + "/memory.peak", "1000\n");
        dir.write(path + "/memory.events", "low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n");
        const auto usage = cgroup.usage();
        EQUAL(*usage.peak_bytes, 1000);
        EQUAL(*usage.failcnt, 7);
        EQUAL(*usage.oom_kills, 1);
        kernel.busy = 2;
        THAT(cgroup.release());
        THAT(cgroup.release());  // a second time is nothing
    }
    EQUAL(kernel.removals, 1);
    THAT(!fs::exists(dir.path(path)));
}

TEST(what_a_kernel_does_not_count_is_empty_not_zero) {
    const check::TempDir dir;
    dir.write("cgroup.subtree_control", "memory\n");
    MadeUpKernel kernel;
    kernel.files = {{"cgroup.procs", ""}, {"memory.max", "max\n"}};
    const MemoryCgroup cgroup({2, {dir.path()}}, 1 << 20, kernel);
    const auto usage = cgroup.usage();
    THAT(!usage.peak_bytes && !usage.failcnt && !usage.oom_kills);
    THAT(!cgroup.swap_limited());
}

TEST(a_cgroup_of_version_1_limits_swap_and_lets_the_kernel_kill) {
    const check::TempDir dir;
    MadeUpKernel kernel;
    kernel.files = {{"cgroup.procs", ""},
                    {"memory.limit_in_bytes", "9223372036854771712\n"},
                    {"memory.memsw.limit_in_bytes", "9223372036854771712\n"},
                    {"memory.oom_control", "oom_kill_disable 1\nunder_oom 0\noom_kill 0\n"}};
    const MemoryCgroup cgroup({1, {dir.path()}}, 1 << 20, kernel);
    const std::string path = named_for(getpid());
    EQUAL(dir.read(path + "/memory.limit_in_bytes"), "1048576");
    EQUAL(dir.read(path + "/memory.memsw.limit_in_bytes"), "1048576");
    EQUAL(dir.read(path + "/memory.oom_control"), "0");
    dir.write(path + "/memory.max_usage_in_bytes", "5000\n");
    dir.write(path + "/memory.failcnt", "2\n");
    dir.write(path + "/memory.memsw.failcnt", "3\n");
    dir.write(path + "/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n");
    EQUAL(*cgroup.usage().peak_bytes, 5000);
    EQUAL(*cgroup.usage().failcnt, 5);
    EQUAL(*cgroup.usage().oom_kills, 4);
    dir.write(path + "/memory.failcnt", "0\n");
    dir.write(path + "/memory.memsw.failcnt", "0\n");  // met or not, for all that some kernels count
    THAT(!cgroup.usage().failcnt);
}

TEST(what_stands_in_the_way_is_said_for_every_place_and_nothing_is_left) {
    const check::TempDir dir;
    dir.write("a/cgroup.subtree_control", "cpu\n");
    dir.write("b/cgroup.subtree_control", "memory\n");
    launcher::CgroupDirs plain;  // makes a directory without the files
    const std::string message = refusal({2, {dir.path("a"), dir.path("b"), dir.path("c")}}, 4096, plain);
    EQUAL(message, dir.path("a") + ": memory is not in its cgroup.subtree_control; " + dir.path("b") +
                       ": cannot set memory.max: No such file or directory; " + dir.path("c") +
                       ": memory is not in its cgroup.subtree_control");
    THAT(!fs::exists(dir.path("b/" + named_for(getpid()))));
    const std::string nowhere = refusal({1, {dir.path("nowhere")}}, 4096, plain);
    EQUAL(nowhere, dir.path("nowhere") + ": cannot make a cgroup: No such file or directory");
}

TEST(a_limit_that_does_not_hold_is_none) {
    const check::TempDir dir;
    dir.write("cgroup.subtree_control", "memory\n");
    dir.write("memory.max", "8192\n");
    MadeUpKernel kernel = version_2();
    EQUAL(refusal({2, {dir.path()}}, 1 << 20, kernel), dir.path() + ": an enclosing cgroup allows only 8192 bytes");
    kernel.files = {{"cgroup.procs", ""},
                    {"memory.limit_in_bytes", "0\n"},
                    {"memory.stat", "cache 0\nhierarchical_memory_limit 4096\nhierarchical_memsw_limit 1\n"}};
    EQUAL(refusal({1, {dir.path()}}, 1 << 20, kernel), dir.path() + ": an enclosing cgroup allows only 4096 bytes");
    EQUAL(kernel.removals, 2);
}

TEST(a_cgroup_nobody_may_enter_is_none) {
    const check::TempDir dir;
    dir.write("cgroup.subtree_control", "memory\n");
    struct : MadeUpKernel {
        int make(const std::string & path) override {
            const int error = MadeUpKernel::make(path);
            fs::create_symlink("/dev/full", path + "/cgroup.procs");  // opens, and refuses what is written
            return error;
        }
    } full;
    full.files = version_2().files;
    full.files.erase(full.files.begin());
    EQUAL(refusal({2, {dir.path()}}, 1 << 20, full),
          dir.path() + ": no process may enter it: No space left on device");
}

TEST(only_cgroups_of_launchers_that_are_gone_are_removed) {
    const check::TempDir dir;
    const std::string gone = named_for(dead_pid());
    const std::string alive = named_for(getppid());
    const std::string recycled = named_for(getpid());  // an earlier process had our number
    for (const std::string & name : {gone, alive, recycled, std::string("moe-launcher-x"), std::string("other-1"),
                                     std::string("moe-launcher-0"), std::string("moe-launcher-99999999999")}) {
        // Whatever its list says, a process that is not in it is not touched: this test would not survive it.
        dir.write("root/" + name + "/cgroup.procs", std::to_string(getpid()) + "\n");
    }
    MadeUpKernel kernel;
    kernel.busy = 1;
    remove_stale_cgroups({2, {dir.path("root"), dir.path("not there")}}, kernel);
    THAT(!fs::exists(dir.path("root/" + gone)));
    THAT(!fs::exists(dir.path("root/" + recycled)));
    EQUAL(kernel.removals, 2);
}

TEST(a_cgroup_that_is_held_is_not_stale) {
    // A launcher of another process-id namespace: its number means nothing here.
    const check::TempDir dir;
    dir.write("cgroup.subtree_control", "memory\n");
    MadeUpKernel kernel = version_2();
    const MemoryCgroup held({2, {dir.path()}}, 1 << 20, kernel);
    remove_stale_cgroups({2, {dir.path()}}, kernel);
    EQUAL(kernel.removals, 0);
}
