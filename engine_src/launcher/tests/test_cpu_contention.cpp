#include <unistd.h>

#include "check.h"
#include "cpu_quota.h"
#include "cpu_ticks.h"
#include "files.h"
#include "thread_waits.h"

using launcher::others_cpu;
using launcher::parse_throttled_ns;
using launcher::parse_wait_ns;
using launcher::read_cpu_ticks;
using launcher::ThreadWaits;
using launcher::ThrottledTime;

namespace {

const char * const v1_cpu = "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpuacct,cpu\n";
const char * const v1_set = "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n";
const char * const v2 = "41 31 0:38 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n";

// A machine with one process, number 7, that moves between cgroups.
struct Machine {
    check::TempDir dir;

    void throttle(const std::string & cgroup, const std::string & line) const {
        dir.write("sys/fs/cgroup/" + cgroup + "/cpu.stat", "nr_periods 9\nnr_throttled 3\n" + line + "\n");
    }
    void move(const std::string & membership) const { dir.write("proc/7/cgroup", membership); }
    ThrottledTime watch() const { return {7, dir.path("proc"), dir.path("sys"), dir.path("proc")}; }
};

}  // namespace

TEST(the_wait_of_a_thread_is_the_second_figure) {
    EQUAL(*parse_wait_ns("5000 1234 3\n"), 1234);
    EQUAL(*parse_wait_ns("5000 0 3\n"), 0);
    THAT(!parse_wait_ns("0 0 0\n"));  // a kernel that does not count
    THAT(!parse_wait_ns(""));
    THAT(!parse_wait_ns("5000"));
}

TEST(waits_are_summed_over_threads_that_come_and_go) {
    const check::TempDir dir;
    ThreadWaits waits(7, dir.path());
    waits.sample();
    THAT(!waits.total_ns());
    dir.write("7/task/7/schedstat", "900 100 1\n");
    dir.write("7/task/8/schedstat", "900 20 1\n");
    dir.write("7/task/9/schedstat", "0 0 0\n");
    waits.sample();
    EQUAL(*waits.total_ns(), 120);
    dir.write("7/task/7/schedstat", "990 150 2\n");
    dir.write("7/task/8/schedstat", "");  // ended: what it waited remains
    waits.sample();
    EQUAL(*waits.total_ns(), 170);
    dir.write("7/task/8/schedstat", "10 5 1\n");  // its number passed to another
    waits.sample();
    EQUAL(*waits.total_ns(), 175);
}

TEST(a_real_process_that_runs_alone_is_seen) {
    volatile unsigned spent = 0;
    for (unsigned i = 0; i < 1000000; ++i) {
        spent = spent + i;
    }
    ThreadWaits waits(getpid());
    waits.sample();
    const bool is_counted = parse_wait_ns(launcher::read_text("/proc/self/schedstat").value_or("")).has_value();
    EQUAL(waits.total_ns().has_value(), is_counted);
}

TEST(what_others_used_is_what_was_busy_less_what_was_ours) {
    const check::TempDir dir;
    const long per_s = sysconf(_SC_CLK_TCK);
    const auto at = [&](const std::string & line) {
        dir.write("stat", line + "\ncpu0 1 1 1 1 1 1 1 1 0 0\n");
        return read_cpu_ticks(dir.path());
    };
    const auto ticks = [&](long s) { return std::to_string(s * per_s); };
    const auto before = at("cpu  0 0 0 0 0 0 0 0 0 0");
    // user nice system idle iowait irq softirq steal guest: 1 + 2 + 3 + 6 + 7 busy
    const auto after = at("cpu  " + ticks(1) + " " + ticks(2) + " " + ticks(3) + " " + ticks(4) + " " + ticks(5) + " " +
                          ticks(6) + " " + ticks(7) + " " + ticks(8) + " " + ticks(1) + " 0");
    EQUAL(after->total(), 36 * per_s);
    EQUAL(after->idle, 9 * per_s);
    const auto others = others_cpu(before, after, 4.0);
    EQUAL(*others.neighbour_s, 15.0);
    EQUAL(*others.steal_s, 8.0);
    EQUAL(*others_cpu(before, after, 100.0).neighbour_s, 0.0);
    const auto old = at("cpu  1 2 3 4");  // before Linux 2.6.11
    THAT(!others_cpu(old, old, 0).steal_s);
    EQUAL(*others_cpu(old, old, 0).neighbour_s, 0.0);
    THAT(!others_cpu(std::nullopt, after, 0).neighbour_s);
    THAT(!at("intr 1"));
}

TEST(throttled_time_in_both_versions) {
    EQUAL(*parse_throttled_ns("nr_periods 1\nnr_throttled 1\nthrottled_time 77\n"), 77);
    EQUAL(*parse_throttled_ns("usage_usec 5\nnr_periods 1\nnr_throttled 1\nthrottled_usec 77\n"), 77000);
    EQUAL(*parse_throttled_ns("usage_usec 5\nuser_usec 3\n"), 0);  // no quota can be set there
    THAT(!parse_throttled_ns(""));
}

TEST(a_quota_counts_from_when_the_process_was_first_seen_under_it) {
    const Machine machine;
    machine.dir.write("proc/self/mountinfo", std::string(v2) + v1_set + v1_cpu);
    machine.throttle("cpu", "throttled_time 5");
    machine.throttle("cpu/held", "throttled_time 1000");
    machine.move("3:cpuset:/wrong\n2:cpuacct,cpu:/\n0::/wrong\n");
    ThrottledTime time = machine.watch();
    THAT(!time.total_ns());
    time.sample();
    machine.throttle("cpu", "throttled_time 12");
    EQUAL(*time.total_ns(), 7);
    machine.move("2:cpuacct,cpu:/held\n");  // a wrapper moved itself
    time.sample();
    machine.throttle("cpu/held", "throttled_time 1500");
    time.sample();
    EQUAL(*time.total_ns(), 507);
    machine.move("2:cpuacct,cpu:/\n");  // what version 1 says of a process that is ending
    time.sample();
    machine.throttle("cpu/held", "throttled_time 1600");
    EQUAL(*time.total_ns(), 607);
}

TEST(of_nested_quotas_the_one_that_held_back_longest_counts) {
    const Machine machine;
    machine.dir.write("proc/self/mountinfo", v2);
    machine.dir.write("sys/fs/cgroup/cpu.stat", "usage_usec 1\n");
    machine.throttle("slice", "throttled_usec 10");
    machine.throttle("slice/own", "throttled_usec 20");
    machine.move("0::/slice/own\n");
    ThrottledTime time = machine.watch();
    time.sample();
    EQUAL(*time.total_ns(), 0);
    machine.throttle("slice", "throttled_usec 19");
    machine.throttle("slice/own", "throttled_usec 23");
    EQUAL(*time.total_ns(), 9000);
}

TEST(what_a_quota_did_is_unknown_where_a_cgroup_cannot_be_read) {
    const Machine machine;
    machine.move("0::/box/here\n");
    THAT(!machine.watch().total_ns());
    ThrottledTime unmounted = machine.watch();
    unmounted.sample();
    THAT(!unmounted.total_ns());
    machine.dir.write("proc/self/mountinfo", "41 31 0:38 /box /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    machine.throttle("here", "throttled_usec 0");
    ThrottledTime time = machine.watch();
    time.sample();
    EQUAL(*time.total_ns(), 0);
    machine.move("0::/elsewhere\n");  // outside of what this container is shown
    time.sample();
    THAT(!time.total_ns());
    machine.move("0::/box/here\n");
    time.sample();
    THAT(!time.total_ns());  // not for the time in between
}
