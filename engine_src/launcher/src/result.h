// What became of a cell, in the words of docs/launcher.md.
#pragma once

#include <optional>
#include <string>

#include "cell.h"
#include "data_limit.h"
#include "device_state.h"
#include "memory_cgroup.h"
#include "options.h"
#include "probe.h"

namespace launcher {

struct CgroupRecord {
    bool required = false;
    std::string unavailable;  // why there is none; empty: there was one, and the rest is about it
    int version = 0;
    std::string path;
    int64_t limit_bytes = 0;
    bool swap_limited = false;
    CgroupUsage usage;
    bool removed = false;
};

struct RunRecord {
    double started_unix_s = 0;
    double ended_unix_s = 0;
    DeviceState entry;
    DeviceState exit;
    std::optional<ProbeResult> probe_before;
    std::optional<ProbeResult> probe_after;
    std::optional<LimitTest> limit_test;
    std::optional<CgroupRecord> cgroup;  // empty: not asked for
    std::optional<CellOutcome> outcome;  // empty: the program was not started
    std::string stop_reason;             // a stop asked for at any time
    bool host_lost = false;              // the lease was over at some time
    std::optional<int64_t> oom_kills;    // during the cell, on the whole device
};

struct Verdict {
    std::string status;
    std::string detail;
};

Verdict judge(const RunRecord & record);

std::string result_json(const Options & options, const RunRecord & record);

}  // namespace launcher
