// Which sensors and clusters a device has, found below its /sys.
#pragma once

#include <string>
#include <vector>

namespace launcher {

struct ThermalZone {
    std::string zone;  // thermal_zone0
    std::string type;  // cpu-0-0; empty when not readable
    std::string temp_path;
};

struct CpuPolicy {
    std::string policy;  // policy0
    std::string dir;
};

std::vector<ThermalZone> find_thermal_zones(const std::string & sys_root);
std::vector<CpuPolicy> find_cpu_policies(const std::string & sys_root);

// Directory of the battery of the device itself (not of a pen or a mouse); empty when there is none.
std::string find_battery(const std::string & sys_root);

}  // namespace launcher
