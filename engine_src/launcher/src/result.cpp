#include "result.h"

#include <signal.h>

#include <algorithm>
#include <cstring>

#include "clocks.h"
#include "json_writer.h"

namespace launcher {

namespace {

std::optional<int64_t> if_seen(int64_t value) {
    return value < 0 ? std::nullopt : std::optional<int64_t>(value);
}

std::string how_it_ended(const CellOutcome & outcome) {
    if (outcome.signal) {
        return "the program ended by " + signal_name(*outcome.signal);
    }
    return "the program ended with exit code " + std::to_string(outcome.exit_code.value_or(-1));
}

// By the cgroup's own count, and not by our last resort.
std::optional<bool> oom_killed(const RunRecord & record) {
    if (!record.cgroup || !record.cgroup->usage.oom_kills || !record.outcome) {
        return std::nullopt;
    }
    const CellOutcome & outcome = *record.outcome;
    return *record.cgroup->usage.oom_kills > 0 && outcome.signal == SIGKILL && !outcome.killed_by_us;
}

// A program that has more in memory than its cgroup was ever charged for uses page cache that was there before.
std::optional<int64_t> uncharged_bytes(const RunRecord & record) {
    const auto charged = record.cgroup->usage.peak_bytes;
    const auto used = record.outcome ? if_seen(record.outcome->peaks.rss_bytes) : std::nullopt;
    return charged && used ? std::optional(std::max<int64_t>(0, *used - *charged)) : std::nullopt;
}

void write_cgroup(JsonWriter & json, const RunRecord & record) {
    json.key("cgroup");
    if (!record.cgroup) {
        json.null();
        return;
    }
    const CgroupRecord & cgroup = *record.cgroup;
    const bool had = cgroup.unavailable.empty();
    const auto if_had = [&](const auto & value) { return had ? std::optional(value) : std::nullopt; };
    json.begin_object().field("mode", std::string(cgroup.required ? "required" : "wanted"));
    json.field("reason", had ? std::nullopt : std::optional(cgroup.unavailable));
    json.field("version", if_had(cgroup.version)).field("path", if_had(cgroup.path));
    json.field("limit_bytes", if_had(cgroup.limit_bytes)).field("swap_limited", if_had(cgroup.swap_limited));
    json.field("peak_bytes", cgroup.usage.peak_bytes).field("failcnt", cgroup.usage.failcnt);
    json.field("oom_kills", cgroup.usage.oom_kills).field("oom_killed", oom_killed(record));
    json.field("uncharged_bytes", uncharged_bytes(record));
    json.field("removed", if_had(cgroup.removed)).end_object();
}

// Fields that only a started program has; all null when there was none.
void write_outcome(JsonWriter & json, const std::optional<CellOutcome> & outcome, bool ran) {
    const auto number = [&](auto get) {
        return ran ? std::optional(get(*outcome)) : std::nullopt;
    };
    const auto peak = [&](int64_t Peaks::*member) {
        return ran ? if_seen(outcome->peaks.*member) : std::nullopt;
    };
    json.field("anon_peak_bytes", peak(&Peaks::anon_bytes));
    json.field("rss_peak_bytes", peak(&Peaks::rss_bytes));
    json.field("vm_data_peak_bytes", peak(&Peaks::vm_data_bytes));
    json.field("swap_peak_bytes", peak(&Peaks::swap_bytes));
    constexpr int64_t kib = 1024;
    json.field("rusage_maxrss_bytes", number([](const CellOutcome & o) { return int64_t{o.usage.ru_maxrss} * kib; }));
    json.field("majflt", number([](const CellOutcome & o) { return o.usage.ru_majflt; }));
    json.field("minflt", number([](const CellOutcome & o) { return o.usage.ru_minflt; }));
    json.field("user_s", number([](const CellOutcome & o) { return to_seconds(o.usage.ru_utime); }));
    json.field("system_s", number([](const CellOutcome & o) { return to_seconds(o.usage.ru_stime); }));
    json.field("invol_ctx", number([](const CellOutcome & o) { return o.usage.ru_nivcsw; }));
    json.field("vol_ctx", number([](const CellOutcome & o) { return o.usage.ru_nvcsw; }));
    json.field("samples", number([](const CellOutcome & o) { return o.samples; }));
    json.field("sampler_cpu_s", number([](const CellOutcome & o) { return o.sampler_cpu_s; }));
    const bool timed = ran && outcome->wall_s > 0;
    json.field("sampler_cpu_share",
               timed ? std::optional<double>(outcome->sampler_cpu_s / outcome->wall_s) : std::nullopt);
    const auto contention = [&](std::optional<double> CpuContention::*member) {
        return ran ? outcome->contention.*member : std::nullopt;
    };
    json.field("cpu_wait_s", contention(&CpuContention::wait_s));
    json.field("cpu_throttled_s", contention(&CpuContention::throttled_s));
    json.field("neighbour_cpu_s", ran ? outcome->contention.others.neighbour_s : std::nullopt);
    json.field("steal_cpu_s", ran ? outcome->contention.others.steal_s : std::nullopt);
    json.field("strays_found", number([](const CellOutcome & o) { return o.strays.found; }));
    json.field("strays_left", number([](const CellOutcome & o) { return o.strays.left; }));
    const bool lost = outcome && outcome->samples_error != 0;
    json.field("samples_error", lost ? std::optional<std::string>(std::strerror(outcome->samples_error)) : std::nullopt);
}

void write_probe(JsonWriter & json, const char * name, const std::optional<ProbeResult> & probe) {
    json.key(name);
    if (probe) {
        write_json(json, *probe);
    } else {
        json.null();
    }
}

}  // namespace

Verdict judge(const RunRecord & record) {
    if (record.limit_test && !record.limit_test->enforced) {
        return {"limit_not_enforced", record.limit_test->detail};
    }
    if (record.cgroup && record.cgroup->required && !record.cgroup->unavailable.empty()) {
        return {"cgroup_unavailable", "no memory cgroup: " + record.cgroup->unavailable};
    }
    if (!record.outcome) {
        return {"killed", record.stop_reason + " before the program was started"};
    }
    const CellOutcome & outcome = *record.outcome;
    if (!outcome.stop_reason.empty()) {
        return {"killed", outcome.stop_reason + (outcome.spawn_failure.empty() ? "; " + how_it_ended(outcome) : "")};
    }
    if (!outcome.spawn_failure.empty()) {
        return {"spawn_failed", outcome.spawn_failure};
    }
    if (oom_killed(record).value_or(false)) {
        return {"killed", how_it_ended(outcome) + ", for its cgroup's limit of " +
                              std::to_string(record.cgroup->limit_bytes) + " bytes was reached"};
    }
    if (outcome.signal == SIGKILL) {
        // Nobody kills himself that way: the kernel or a phone's low-memory killer did, or a person.
        const bool oom = record.oom_kills.value_or(0) > 0;
        return {"killed", how_it_ended(outcome) + (oom ? ", and the kernel ran out of memory meanwhile"
                                                       : ", which the launcher did not send")};
    }
    const bool ok = outcome.exit_code == 0;
    return {ok ? "ok" : "failed", how_it_ended(outcome)};
}

std::string result_json(const Options & options, const RunRecord & record) {
    const Verdict verdict = judge(record);
    const std::optional<CellOutcome> & outcome = record.outcome;
    const bool ran = outcome && outcome->spawn_failure.empty();

    JsonWriter json;
    json.begin_object().field("launcher_version", std::string(MOE_LAUNCHER_VERSION)).key("argv").begin_array();
    for (const std::string & argument : options.program) {
        json.string(argument);
    }
    json.end_array();
    json.field("started_unix_s", record.started_unix_s).field("ended_unix_s", record.ended_unix_s);
    json.field("wall_s", ran ? std::optional<double>(outcome->wall_s) : std::nullopt);
    json.field("status", verdict.status).field("status_detail", verdict.detail);
    json.field("exit_code", ran ? outcome->exit_code : std::nullopt);
    json.field("signal", ran ? outcome->signal : std::nullopt);
    json.field("timed_out", outcome && outcome->timed_out).field("interrupted", !record.stop_reason.empty());
    json.field("host_lost", record.host_lost);
    json.field("data_limit_bytes", options.data_limit_bytes);
    json.field("data_limit_enforced",
               record.limit_test ? std::optional<bool>(record.limit_test->enforced) : std::nullopt);
    write_cgroup(json, record);
    json.field("oom_kills", record.oom_kills);
    write_outcome(json, outcome, ran);
    json.key("sensors");
    write_json(json, outcome ? outcome->sensors : std::vector<SensorRange>{});
    json.key("entry");
    write_json(json, record.entry);
    json.key("exit");
    write_json(json, record.exit);
    json.key("probe");
    if (options.probe_s > 0) {
        json.begin_object();
        write_probe(json, "before", record.probe_before);
        write_probe(json, "after", record.probe_after);
        json.end_object();
    } else {
        json.null();
    }
    json.end_object();
    return json.text() + "\n";
}

}  // namespace launcher
