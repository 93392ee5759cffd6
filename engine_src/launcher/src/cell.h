// One program run: started, watched, limited in time, ended with all that belongs to it.
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cpu_ticks.h"
#include "csv_file.h"
#include "device_series.h"
#include "options.h"
#include "process_tree.h"
#include "spawn.h"
#include "stop.h"

namespace launcher {

// Highest values over all samples; negative: never seen.
struct Peaks {
    int64_t anon_bytes = -1;
    int64_t rss_bytes = -1;
    int64_t vm_data_bytes = -1;
    int64_t swap_bytes = -1;
};

// What kept the program from the cores, in seconds. Empty: not to be read.
struct CpuContention {
    std::optional<double> wait_s;       // its threads were ready to run and waited
    std::optional<double> throttled_s;  // a CPU quota held its cgroup back
    OthersCpu others;
};

struct CellOutcome {
    std::string spawn_failure;  // empty: the program was started
    std::string stop_reason;    // why the launcher ended the program; empty: it ended by itself
    bool timed_out = false;
    std::optional<int> exit_code;
    std::optional<int> signal;
    bool killed_by_us = false;  // the KILL of last resort, after TERM and the grace time
    double wall_s = 0;
    double sampler_cpu_s = 0;
    int64_t samples = 0;
    Peaks peaks;
    rusage usage{};
    CpuContention contention;
    ProcessTree::Sweep strays;
    std::vector<SensorRange> sensors;
    int samples_error = 0;  // errno of a row that could not be written
};

struct CellFiles {
    CsvFile & samples;
    CsvFile & device;
    UniqueFd stdout_fd;
    UniqueFd stderr_fd;
};

// `cgroup_entrance` as in SpawnRequest.
CellOutcome run_cell(const Options & options, int cgroup_entrance, CellFiles & files, Stop & stop,
                     ProcessTree & tree);

}  // namespace launcher
