#include "cell.h"

#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>

#include "clocks.h"
#include "cpu_quota.h"
#include "process_sampler.h"
#include "thread_waits.h"

namespace launcher {

namespace {

constexpr int64_t ms_ns = 1000000;
constexpr int64_t grace_ns = 2000 * ms_ns;
constexpr int64_t flush_ns = 1000 * ms_ns;
constexpr int64_t start_poll_ns = ms_ns;
constexpr int64_t settling_ms = 250;  // within which a wrapper moves itself to a cgroup and becomes the program

// What is read of the started process.
struct Watched {
    ProcessSampler sampler;
    ThreadWaits waits;
    ThrottledTime throttled;
};

class Cell {
public:
    Cell(const Options & options, int cgroup_entrance, CellFiles & files, Stop & stop, ProcessTree & tree)
        : options_(options), cgroup_entrance_(cgroup_entrance), files_(files), stop_(stop), tree_(tree),
          device_(options.proc_root, options.sys_root, files.device) {}

    CellOutcome run();

private:
    void watch(const SpawnedProgram & program);
    int64_t stop_if_due(pid_t program, int64_t now);
    void sample(Watched & watched, int64_t now);
    void collect(pid_t program);
    int64_t since_start_ms(int64_t now) const { return (now - started_ns_) / ms_ns; }

    const Options & options_;
    const int cgroup_entrance_;
    CellFiles & files_;
    Stop & stop_;
    ProcessTree & tree_;
    DeviceSeries device_;
    CellOutcome outcome_;
    int64_t started_ns_ = 0;
    int64_t next_sample_ns_ = 0;
    int64_t next_device_ns_ = 0;
    int64_t next_flush_ns_ = 0;
    int64_t kill_at_ns_ = 0;  // 0: not asked to end yet
};

CellOutcome Cell::run() {
    files_.samples.text("t_ms,anon_bytes,rss_bytes,vm_data_bytes,majflt,minflt,user_ms,system_ms,threads,swap_bytes");
    files_.samples.end_row();
    files_.samples.flush();
    files_.device.flush();

    SpawnRequest request;
    request.argv = options_.program;
    request.env = options_.env;
    request.cwd = options_.cwd;
    request.data_limit_bytes = options_.data_limit_bytes;
    request.cgroup_entrance = cgroup_entrance_;
    request.stdout_fd = files_.stdout_fd.get();
    request.stderr_fd = files_.stderr_fd.get();

    const auto ticks_before = read_cpu_ticks(options_.proc_root);
    // From here to the end of the program, the launcher's CPU time is the price of watching.
    const int64_t cpu_begun_ns = process_cpu_ns();
    started_ns_ = monotonic_ns();
    try {
        SpawnedProgram program(request);
        while (program.progress() == SpawnedProgram::Progress::starting && !tree_.has_ended(program.pid())) {
            const int64_t now = monotonic_ns();
            stop_if_due(program.pid(), now);
            stop_.wait_until(now + start_poll_ns);
        }
        if (program.progress() == SpawnedProgram::Progress::running) {
            watch(program);
        }
        outcome_.wall_s = static_cast<double>(monotonic_ns() - started_ns_) / 1e9;
        outcome_.sampler_cpu_s = static_cast<double>(process_cpu_ns() - cpu_begun_ns) / 1e9;
        const auto ticks_after = read_cpu_ticks(options_.proc_root);
        const int64_t now = monotonic_ns();
        outcome_.strays = tree_.end_rest(program.pid(), kill_at_ns_ != 0 ? kill_at_ns_ : now + grace_ns);
        collect(program.pid());
        const rusage & usage = outcome_.usage;
        const double own_s = to_seconds(usage.ru_utime) + to_seconds(usage.ru_stime) + outcome_.sampler_cpu_s;
        outcome_.contention.others = others_cpu(ticks_before, ticks_after, own_s);
        outcome_.spawn_failure = program.failure();
    } catch (const std::runtime_error & error) {
        outcome_.spawn_failure = error.what();
    }
    files_.samples.flush();
    files_.device.flush();
    outcome_.samples_error = files_.samples.error() != 0 ? files_.samples.error() : files_.device.error();
    outcome_.sensors = device_.ranges();
    return std::move(outcome_);
}

void Cell::watch(const SpawnedProgram & program) {
    const pid_t pid = program.pid();
    Watched watched{ProcessSampler(pid), ThreadWaits(pid), ThrottledTime(pid, options_.proc_root, options_.sys_root)};
    next_flush_ns_ = monotonic_ns() + flush_ns;
    while (!tree_.has_ended(pid)) {
        const int64_t now = monotonic_ns();
        sample(watched, now);
        const int64_t stop_due_ns = stop_if_due(pid, now);
        stop_.wait_until(std::min(next_sample_ns_, stop_due_ns));
    }
    watched.waits.sample();  // of a process that waits to be collected, the first thread still tells
    const auto in_seconds = [](std::optional<int64_t> ns) {
        return ns ? std::optional<double>(static_cast<double>(*ns) / 1e9) : std::nullopt;
    };
    outcome_.contention.wait_s = in_seconds(watched.waits.total_ns());
    outcome_.contention.throttled_s = in_seconds(watched.throttled.total_ns());
}

void Cell::sample(Watched & watched, int64_t now) {
    if (now < next_sample_ns_) {
        return;  // woken by a signal
    }
    const int64_t t_ms = since_start_ms(now);
    ProcessSample row;
    const ProcessSampler & sampler = watched.sampler;
    if (watched.sampler.read(row)) {
        CsvFile & table = files_.samples;
        table.integer(t_ms);
        table.integer_or_empty(row.anon_bytes);
        table.integer_or_empty(row.rss_bytes);
        table.integer_or_empty(row.vm_data_bytes);
        table.integer_or_empty(row.majflt);
        table.integer_or_empty(row.minflt);
        table.integer_or_empty(sampler.ticks_to_ms(row.user_ticks));
        table.integer_or_empty(sampler.ticks_to_ms(row.system_ticks));
        table.integer_or_empty(row.threads);
        table.integer_or_empty(row.swap_bytes);
        table.end_row();
        Peaks & peaks = outcome_.peaks;
        peaks.anon_bytes = std::max(peaks.anon_bytes, row.anon_bytes);
        peaks.rss_bytes = std::max({peaks.rss_bytes, row.rss_bytes, row.rss_high_water_bytes});
        peaks.vm_data_bytes = std::max(peaks.vm_data_bytes, row.vm_data_bytes);
        peaks.swap_bytes = std::max(peaks.swap_bytes, row.swap_bytes);
        ++outcome_.samples;
    }
    const bool device_due = now >= next_device_ns_;
    if (device_due || t_ms < settling_ms) {
        watched.throttled.sample();
    }
    if (device_due) {
        watched.waits.sample();
        // On the ticks of the samples, so that the device costs no wake-up of its own.
        device_.sample(t_ms);
        next_device_ns_ = now + options_.device_ms * ms_ns - options_.sample_ms * ms_ns / 2;
    }
    if (now >= next_flush_ns_) {
        files_.samples.flush();
        files_.device.flush();
        next_flush_ns_ = now + flush_ns;
    }
    // On a fixed grid; ticks missed while the machine was busy are left out rather than made up for in a burst.
    const int64_t step_ns = options_.sample_ms * ms_ns;
    next_sample_ns_ = started_ns_ + ((now - started_ns_) / step_ns + 1) * step_ns;
}

// Ends the program when it is time to; returns when to look again.
int64_t Cell::stop_if_due(pid_t program, int64_t now) {
    const int64_t limit_ns =
        options_.time_limit_s ? started_ns_ + static_cast<int64_t>(*options_.time_limit_s * 1e9) : INT64_MAX;
    if (kill_at_ns_ == 0) {
        if (!stop_.reason().empty()) {
            outcome_.stop_reason = stop_.reason();
        } else if (now >= limit_ns) {
            outcome_.timed_out = true;
            outcome_.stop_reason = "the time limit was reached";
        } else {
            return limit_ns;
        }
        kill_at_ns_ = now + grace_ns;
        tree_.signal_all(program, SIGTERM);
        tree_.signal_all(program, SIGCONT);  // a stopped process would not hear the first
    }
    if (now < kill_at_ns_) {
        return kill_at_ns_;
    }
    outcome_.killed_by_us = true;
    tree_.signal_all(program, SIGKILL);
    return now + grace_ns;
}

void Cell::collect(pid_t program) {
    int status = 0;
    while (wait4(program, &status, 0, &outcome_.usage) < 0) {
        if (errno != EINTR) {
            return;
        }
    }
    if (WIFEXITED(status)) {
        outcome_.exit_code = WEXITSTATUS(status);
    } else if (WIFSIGNALED(status)) {
        outcome_.signal = WTERMSIG(status);
    }
}

}  // namespace

CellOutcome run_cell(const Options & options, int cgroup_entrance, CellFiles & files, Stop & stop,
                     ProcessTree & tree) {
    return Cell(options, cgroup_entrance, files, stop, tree).run();
}

}  // namespace launcher
