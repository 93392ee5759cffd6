// What all cores together have done since boot, by the kernel's count.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace launcher {

// In ticks of 1 / sysconf(_SC_CLK_TCK) seconds.
struct CpuTicks {
    int64_t busy = 0;              // user nice system irq softirq
    int64_t idle = 0;              // idle iowait
    std::optional<int64_t> steal;  // taken by the hypervisor; empty: this kernel does not say
    int64_t total() const { return busy + idle + steal.value_or(0); }
};

std::optional<CpuTicks> read_cpu_ticks(const std::string & proc_root);

// Of a run: what others used, and what the hypervisor took. Empty: not to be read.
struct OthersCpu {
    std::optional<double> neighbour_s;
    std::optional<double> steal_s;
};

// `own_s`: CPU time of the engine and the launcher between both readings.
OthersCpu others_cpu(const std::optional<CpuTicks> & before, const std::optional<CpuTicks> & after, double own_s);

}  // namespace launcher
