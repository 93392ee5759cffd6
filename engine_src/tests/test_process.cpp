// Available memory, read from made-up /proc and /sys trees of machines, containers and cgroups.
#include "process.h"

#include "check.h"
#include "temp_dir.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

using namespace moe;

namespace {

constexpr uint64_t mib = uint64_t{1} << 20;

class Tree {
public:
    void write(const std::string & path, const std::string & text) {
        const std::string file = root() + path;
        std::filesystem::create_directories(std::filesystem::path(file).parent_path());
        std::ofstream(file) << text;
    }

    void meminfo(uint64_t available_mib) {
        write("/proc/meminfo", "MemTotal:       16384000 kB\nMemFree:          100000 kB\nMemAvailable:   " +
                                   std::to_string(available_mib * 1024) + " kB\nBuffers:  1 kB\n");
    }

    void v2(const std::string & group, const std::string & max, uint64_t current_mib, uint64_t file_mib = 0) {
        const std::string dir = "/sys/fs/cgroup" + group;
        write(dir + "/memory.max", max + "\n");
        write(dir + "/memory.current", std::to_string(current_mib * mib) + "\n");
        write(dir + "/memory.stat", "anon 1\nfile 999\ninactive_anon 7\ninactive_file " +
                                        std::to_string(file_mib * mib / 2) + "\nactive_file " +
                                        std::to_string(file_mib * mib / 2) + "\n");
    }

    void v1(const std::string & group, uint64_t limit, uint64_t usage_mib, uint64_t file_mib = 0) {
        const std::string dir = "/sys/fs/cgroup/memory" + group;
        write(dir + "/memory.limit_in_bytes", std::to_string(limit) + "\n");
        write(dir + "/memory.usage_in_bytes", std::to_string(usage_mib * mib) + "\n");
        // The first two are of this group alone, without the groups below.
        write(dir + "/memory.stat", "inactive_file 4096\nactive_file 4096\ntotal_inactive_file " +
                                        std::to_string(file_mib * mib / 2) + "\ntotal_active_file " +
                                        std::to_string(file_mib * mib / 2) + "\n");
    }

    std::string root() const { return dir_.file("root"); }
    std::optional<uint64_t> available() const { return available_memory_bytes(root()); }
    std::optional<uint64_t> left() const { return cgroup_left_bytes(root()); }

private:
    TempDir dir_;
};

std::string in_bytes(uint64_t n_mib) { return std::to_string(n_mib * mib); }

void nothing_is_known_without_proc() {
    const Tree tree;
    CHECK(!tree.available());
    CHECK(!tree.left());
}

void a_machine_without_groups_has_what_the_kernel_says() {
    Tree tree;
    tree.meminfo(5000);
    CHECK(tree.available() == 5000 * mib);
    CHECK(!tree.left());
}

void an_old_kernel_does_not_say() {
    Tree tree;
    tree.write("/proc/meminfo", "MemTotal:  16384000 kB\nMemFree:  100000 kB\n");
    tree.write("/proc/self/cgroup", "0::/\n");
    tree.v2("", in_bytes(1000), 0);
    CHECK(!tree.available());
    CHECK(tree.left() == 1000 * mib);
}

void version_2_limits() {
    Tree tree;
    tree.meminfo(5000);
    tree.write("/proc/self/cgroup", "0::/user.slice/session\n");
    tree.v2("/user.slice/session", in_bytes(2000), 300);
    CHECK(tree.left() == 1700 * mib);
    CHECK(tree.available() == 1700 * mib);
}

void the_machine_may_have_less_than_the_group() {
    Tree tree;
    tree.meminfo(900);
    tree.write("/proc/self/cgroup", "0::/g\n");
    tree.v2("/g", in_bytes(2000), 300);
    CHECK(tree.left() == 1700 * mib);
    CHECK(tree.available() == 900 * mib);
}

void a_group_without_a_limit_does_not_bound() {
    Tree tree;
    tree.meminfo(5000);
    tree.write("/proc/self/cgroup", "0::/g\n");
    tree.v2("/g", "max", 300);
    CHECK(!tree.left());
    CHECK(tree.available() == 5000 * mib);
}

void the_tightest_group_above_counts() {
    Tree tree;
    tree.write("/proc/self/cgroup", "0::/a/b/c\n");
    tree.v2("/a/b/c", "max", 10);
    tree.v2("/a/b", in_bytes(2000), 300);
    tree.v2("/a", in_bytes(3000), 2900);
    CHECK(tree.left() == 100 * mib);
}

void memory_high_is_a_limit() {
    Tree tree;
    tree.write("/proc/self/cgroup", "0::/g\n");
    tree.v2("/g", in_bytes(2000), 300);
    tree.write("/sys/fs/cgroup/g/memory.high", in_bytes(1000) + "\n");
    CHECK(tree.left() == 700 * mib);
    tree.v2("/g", "max", 300);
    CHECK(tree.left() == 700 * mib);
    tree.write("/sys/fs/cgroup/g/memory.high", "max\n");
    CHECK(!tree.left());
}

void page_cache_of_a_group_is_free() {
    Tree tree;
    tree.write("/proc/self/cgroup", "0::/g\n");
    tree.v2("/g", in_bytes(1000), 1000, 600);
    CHECK(tree.left() == 600 * mib);
    tree.v2("/g", in_bytes(1000), 100, 600);  // a statistic that is behind: never more than the limit
    CHECK(tree.left() == 1000 * mib);
}

void a_group_beyond_its_limit_leaves_nothing() {
    Tree tree;
    tree.meminfo(5000);
    tree.write("/proc/self/cgroup", "0::/g\n");
    tree.v2("/g", in_bytes(1000), 1200);
    CHECK(tree.left() == 0u);
    CHECK(tree.available() == 0u);
}

void version_1_limits() {
    Tree tree;
    tree.meminfo(5000);
    tree.write("/proc/self/cgroup", "9:name=systemd:/\n5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n");
    tree.v1("/docker/abc", 1500 * mib, 1400, 600);
    tree.v1("/docker", 9223372036854771712u, 1400);
    tree.v1("", 9223372036854771712u, 1400);
    CHECK(tree.left() == 700 * mib);
    CHECK(tree.available() == 700 * mib);
}

void version_1_without_a_limit() {
    Tree tree;
    tree.meminfo(5000);
    tree.write("/proc/self/cgroup", "4:memory:/\n");
    tree.v1("", 9223372036854771712u, 1400);
    CHECK(!tree.left());
    CHECK(tree.available() == 5000 * mib);
}

void a_container_sees_its_own_group_on_top() {
    // The path is the host's; the mount shows the container's group as the root.
    Tree tree;
    tree.write("/proc/self/cgroup", "4:memory:/docker/abc\n");
    tree.v1("", 800 * mib, 100);
    CHECK(tree.left() == 700 * mib);

    Tree outside;
    outside.write("/proc/self/cgroup", "0::/../../other\n");
    outside.v2("", in_bytes(800), 100);
    CHECK(outside.left() == 700 * mib);
}

void a_group_without_statistics_still_limits() {
    Tree tree;
    tree.write("/proc/self/cgroup", "0::/g\n");
    tree.write("/sys/fs/cgroup/g/memory.max", in_bytes(1000));
    CHECK(!tree.left());  // usage unknown
    tree.write("/sys/fs/cgroup/g/memory.current", in_bytes(400));
    CHECK(tree.left() == 600 * mib);
}

void nonsense_is_not_followed() {
    Tree tree;
    tree.meminfo(5000);
    tree.write("/proc/self/cgroup", "\nmemory\n4:memory\n4:memory:no-slash\n::\n");
    tree.v1("", 800 * mib, 100);
    CHECK(tree.left() == 700 * mib);  // of the one line that has three fields
}

void this_machine_can_be_asked() {
    const uint64_t all = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    const std::optional<uint64_t> available = available_memory_bytes();
    CHECK(available && *available > 0 && *available <= all);
}

}  // namespace

int main() {
    check::run("nothing is known without /proc", nothing_is_known_without_proc);
    check::run("a machine without groups has what the kernel says", a_machine_without_groups_has_what_the_kernel_says);
    check::run("an old kernel does not say", an_old_kernel_does_not_say);
    check::run("version 2 limits", version_2_limits);
    check::run("the machine may have less than the group", the_machine_may_have_less_than_the_group);
    check::run("a group without a limit does not bound", a_group_without_a_limit_does_not_bound);
    check::run("the tightest group above counts", the_tightest_group_above_counts);
    check::run("memory.high is a limit", memory_high_is_a_limit);
    check::run("page cache of a group is free", page_cache_of_a_group_is_free);
    check::run("a group beyond its limit leaves nothing", a_group_beyond_its_limit_leaves_nothing);
    check::run("version 1 limits", version_1_limits);
    check::run("version 1 without a limit", version_1_without_a_limit);
    check::run("a container sees its own group on top", a_container_sees_its_own_group_on_top);
    check::run("a group without statistics still limits", a_group_without_statistics_still_limits);
    check::run("nonsense is not followed", nonsense_is_not_followed);
    check::run("this machine can be asked", this_machine_can_be_asked);
    return check::result();
}
