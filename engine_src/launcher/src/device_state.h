// What the device looks like at one moment: memory, load, clocks, temperatures, battery, pressure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace launcher {

class JsonWriter;

struct CpuPolicyState {
    std::string policy;
    std::optional<std::string> cpus;  // as the kernel lists them: "0 1 2 3"
    std::optional<int64_t> scaling_max_khz;
    std::optional<int64_t> scaling_cur_khz;
    std::optional<int64_t> cpuinfo_max_khz;
    std::optional<std::string> governor;
};

struct Temperature {
    std::string zone;
    std::string type;
    double temp_c = 0;
};

struct BatteryState {
    std::optional<double> temp_c;
    std::optional<int64_t> capacity_pct;
    std::optional<std::string> status;
    std::optional<int64_t> current_ua;
};

struct PressureState {
    std::optional<double> cpu_some_avg10;
    std::optional<double> memory_some_avg10;
    std::optional<double> io_some_avg10;
};

struct DeviceState {
    double unix_s = 0;
    std::optional<int64_t> mem_total_bytes;
    std::optional<int64_t> mem_available_bytes;
    std::optional<int64_t> swap_free_bytes;
    std::optional<double> load_1m;
    std::optional<double> cpu_busy_share;
    std::vector<CpuPolicyState> cpufreq;
    std::vector<Temperature> thermal;
    std::optional<BatteryState> battery;
    std::optional<PressureState> psi;
};

// Takes 100 ms, over which it measures how busy the cores are.
DeviceState read_device_state(const std::string & proc_root, const std::string & sys_root);

// Processes ended by the kernel for want of memory since boot.
std::optional<int64_t> read_oom_kills(const std::string & proc_root);

void write_json(JsonWriter & json, const DeviceState & state);

}  // namespace launcher
