#include "device_layout.h"

#include "files.h"

namespace launcher {

std::vector<ThermalZone> find_thermal_zones(const std::string & sys_root) {
    const std::string base = sys_root + "/class/thermal";
    std::vector<ThermalZone> zones;
    for (const std::string & name : list_names(base, "thermal_zone")) {
        const std::string dir = base + "/" + name;
        zones.push_back({name, read_value(dir + "/type").value_or(""), dir + "/temp"});
    }
    return zones;
}

std::vector<CpuPolicy> find_cpu_policies(const std::string & sys_root) {
    const std::string base = sys_root + "/devices/system/cpu/cpufreq";
    std::vector<CpuPolicy> policies;
    for (const std::string & name : list_names(base, "policy")) {
        policies.push_back({name, base + "/" + name});
    }
    return policies;
}

std::string find_battery(const std::string & sys_root) {
    const std::string base = sys_root + "/class/power_supply";
    for (const std::string & name : list_names(base, "")) {
        const std::string dir = base + "/" + name;
        if (read_value(dir + "/type") == "Battery" && read_value(dir + "/scope") != "Device") {
            return dir;
        }
    }
    return {};
}

}  // namespace launcher
