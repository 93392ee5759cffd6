#include "run.h"

#include "cell.h"
#include "clocks.h"
#include "errors.h"
#include "file_lock.h"
#include "result.h"
#include "result_file.h"

namespace launcher {

namespace {

// The limit may be had or not; the record says which, and why not.
CgroupRecord make_cgroup(const Options & options, CgroupDirs & dirs, std::optional<MemoryCgroup> & cgroup) {
    CgroupRecord record;
    record.required = options.cgroup_mode == "required";
    try {
        const CgroupHierarchy hierarchy = find_memory_hierarchy(options.proc_root, options.sys_root);
        remove_stale_cgroups(hierarchy, dirs);
        cgroup.emplace(hierarchy, *options.cgroup_limit_bytes, dirs);
        record.version = hierarchy.version;
        record.path = cgroup->path();
        record.limit_bytes = cgroup->limit_bytes();
        record.swap_limited = cgroup->swap_limited();
    } catch (const CgroupUnavailable & error) {
        record.unavailable = error.what();
    }
    return record;
}

}  // namespace

void run(const Options & options, Stop & stop, const std::function<void()> & ready) {
    close_all_on_exec();
    // First: the files of another cell that still runs here are not to be touched. Let go of last, when all is written.
    std::optional<FileLock> lock;
    if (!options.lock.empty()) {
        lock = FileLock::take(options.lock);
        if (!lock) {
            throw LockHeld("another process holds the lock " + options.lock);
        }
    }
    ProcessTree tree;

    // All files first: a cell whose outcome could not be kept is not worth running.
    const UniqueFd dir = open_output_dir(options.dir);
    ResultFile result(dir, options.dir);
    CsvFile samples(create_output(dir, options.dir, "samples.csv"));
    CsvFile device(create_output(dir, options.dir, "device.csv"));
    CellFiles files{samples, device, create_output(dir, options.dir, "stdout.txt"),
                    create_output(dir, options.dir, "stderr.txt")};

    ready();

    RunRecord record;
    const auto stopped = [&] { return stop.asked(); };
    const bool probed = options.probe_s > 0;
    if (options.data_limit_bytes) {
        record.limit_test = test_data_limit(*options.data_limit_bytes);
    }
    bool may_start = !record.limit_test || record.limit_test->enforced;
    CgroupDirs cgroup_dirs;
    std::optional<MemoryCgroup> cgroup;
    if (options.cgroup_limit_bytes && may_start) {
        record.cgroup = make_cgroup(options, cgroup_dirs, cgroup);
        may_start = cgroup || !record.cgroup->required;
    }
    record.entry = read_device_state(options.proc_root, options.sys_root);
    if (may_start && probed) {
        record.probe_before = run_probe(options.probe_s, options.probe_file, stopped);
    }
    const auto oom_before = read_oom_kills(options.proc_root);
    record.started_unix_s = unix_s();
    if (may_start && !stop.asked()) {
        record.outcome = run_cell(options, cgroup ? cgroup->entrance() : -1, files, stop, tree);
    }
    if (cgroup) {
        if (record.outcome && record.outcome->spawn_failure.empty()) {
            record.cgroup->usage = cgroup->usage();
        }
        record.cgroup->removed = cgroup->release();
    }
    record.ended_unix_s = unix_s();
    const auto oom_after = read_oom_kills(options.proc_root);
    if (oom_before && oom_after) {
        record.oom_kills = *oom_after - *oom_before;
    }
    // The state before the probe, which warms the device up again.
    record.exit = read_device_state(options.proc_root, options.sys_root);
    // When someone asked us to stop, the result is wanted soon: the probe gives way.
    if (record.outcome && probed && !stop.asked()) {
        record.probe_after = run_probe(options.probe_s, options.probe_file, stopped);
    }
    stop.asked();
    record.stop_reason = stop.reason();
    record.host_lost = stop.host_lost();
    result.commit(result_json(options, record));
}

}  // namespace launcher
