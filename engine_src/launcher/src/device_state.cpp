#include "device_state.h"

#include "clocks.h"
#include "cpu_ticks.h"
#include "device_layout.h"
#include "files.h"
#include "json_writer.h"
#include "thermal.h"

namespace launcher {

namespace {

std::optional<double> measure_busy_share(const std::string & proc_root) {
    constexpr int64_t span_ns = 100 * 1000000LL;
    const auto before = read_cpu_ticks(proc_root);
    if (!before) {
        return std::nullopt;
    }
    sleep_ns(span_ns);
    const auto after = read_cpu_ticks(proc_root);
    if (!after || after->total() <= before->total()) {
        return std::nullopt;
    }
    const auto total = static_cast<double>(after->total() - before->total());
    const auto idle = static_cast<double>(after->idle - before->idle);
    const double busy = 1.0 - idle / total;
    return busy < 0 ? 0 : busy > 1 ? 1 : busy;
}

void read_memory(const std::string & proc_root, DeviceState & state) {
    const auto text = read_text(proc_root + "/meminfo");
    if (!text) {
        return;
    }
    const auto bytes = [&](const char * key) -> std::optional<int64_t> {
        const auto kib = int_after(*text, key);
        return kib ? std::optional<int64_t>(*kib * 1024) : std::nullopt;
    };
    state.mem_total_bytes = bytes("MemTotal:");
    state.mem_available_bytes = bytes("MemAvailable:");
    state.swap_free_bytes = bytes("SwapFree:");
}

CpuPolicyState read_policy(const CpuPolicy & policy) {
    CpuPolicyState state;
    state.policy = policy.policy;
    state.cpus = read_value(policy.dir + "/related_cpus");
    state.scaling_max_khz = read_int(policy.dir + "/scaling_max_freq");
    state.scaling_cur_khz = read_int(policy.dir + "/scaling_cur_freq");
    state.cpuinfo_max_khz = read_int(policy.dir + "/cpuinfo_max_freq");
    state.governor = read_value(policy.dir + "/scaling_governor");
    return state;
}

std::optional<BatteryState> read_battery(const std::string & sys_root) {
    const std::string dir = find_battery(sys_root);
    if (dir.empty()) {
        return std::nullopt;
    }
    BatteryState state;
    if (const auto raw = read_int(dir + "/temp")) {
        state.temp_c = TemperatureScale().to_celsius(*raw);
    }
    state.capacity_pct = read_int(dir + "/capacity");
    state.status = read_value(dir + "/status");
    state.current_ua = read_int(dir + "/current_now");
    return state;
}

std::optional<PressureState> read_pressure(const std::string & proc_root) {
    const auto some_avg10 = [&](const char * resource) -> std::optional<double> {
        const auto text = read_text(proc_root + "/pressure/" + resource);
        return text ? decimal_after(*text, "some avg10=") : std::nullopt;
    };
    PressureState state{some_avg10("cpu"), some_avg10("memory"), some_avg10("io")};
    if (!state.cpu_some_avg10 && !state.memory_some_avg10 && !state.io_some_avg10) {
        return std::nullopt;
    }
    return state;
}

}  // namespace

std::optional<int64_t> read_oom_kills(const std::string & proc_root) {
    const auto text = read_text(proc_root + "/vmstat");
    return text ? int_after(*text, "\noom_kill ") : std::nullopt;
}

DeviceState read_device_state(const std::string & proc_root, const std::string & sys_root) {
    DeviceState state;
    state.unix_s = unix_s();
    read_memory(proc_root, state);
    if (const auto text = read_text(proc_root + "/loadavg")) {
        state.load_1m = decimal_after(*text, "");
    }
    for (const CpuPolicy & policy : find_cpu_policies(sys_root)) {
        state.cpufreq.push_back(read_policy(policy));
    }
    for (const ThermalZone & zone : find_thermal_zones(sys_root)) {
        const auto raw = read_int(zone.temp_path);
        const auto celsius = raw ? TemperatureScale().to_celsius(*raw) : std::nullopt;
        if (celsius) {
            state.thermal.push_back({zone.zone, zone.type, *celsius});
        }
    }
    state.battery = read_battery(sys_root);
    state.psi = read_pressure(proc_root);
    // Last: it takes 100 ms, and the temperatures of a cell that has just ended fall meanwhile.
    state.cpu_busy_share = measure_busy_share(proc_root);
    return state;
}

void write_json(JsonWriter & json, const DeviceState & state) {
    json.begin_object();
    json.field("unix_s", state.unix_s);
    json.field("mem_total_bytes", state.mem_total_bytes);
    json.field("mem_available_bytes", state.mem_available_bytes);
    json.field("swap_free_bytes", state.swap_free_bytes);
    json.field("load_1m", state.load_1m);
    json.field("cpu_busy_share", state.cpu_busy_share);
    json.key("cpufreq").begin_array();
    for (const CpuPolicyState & policy : state.cpufreq) {
        json.begin_object().field("policy", policy.policy).field("cpus", policy.cpus);
        json.field("scaling_max_khz", policy.scaling_max_khz);
        json.field("scaling_cur_khz", policy.scaling_cur_khz);
        json.field("cpuinfo_max_khz", policy.cpuinfo_max_khz);
        json.field("governor", policy.governor).end_object();
    }
    json.end_array().key("thermal").begin_array();
    for (const Temperature & reading : state.thermal) {
        json.begin_object().field("zone", reading.zone).field("type", reading.type);
        json.key("temp_c").decimal(reading.temp_c, 3).end_object();
    }
    json.end_array().key("battery");
    if (state.battery) {
        json.begin_object().field("temp_c", state.battery->temp_c);
        json.field("capacity_pct", state.battery->capacity_pct);
        json.field("status", state.battery->status);
        json.field("current_ua", state.battery->current_ua).end_object();
    } else {
        json.null();
    }
    json.key("psi");
    if (state.psi) {
        json.begin_object().field("cpu_some_avg10", state.psi->cpu_some_avg10);
        json.field("memory_some_avg10", state.psi->memory_some_avg10);
        json.field("io_some_avg10", state.psi->io_some_avg10).end_object();
    } else {
        json.null();
    }
    json.end_object();
}

}  // namespace launcher
