#include "cpu_ticks.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "files.h"

namespace launcher {

std::optional<CpuTicks> read_cpu_ticks(const std::string & proc_root) {
    const auto text = read_text(proc_root + "/stat");
    if (!text || text->rfind("cpu ", 0) != 0) {
        return std::nullopt;
    }
    // user nice system idle iowait irq softirq steal; guest time is already part of user.
    constexpr int fields = 8, idle_field = 3, iowait_field = 4, steal_field = 7;
    CpuTicks ticks;
    const char * at = text->data() + 4;
    const char * const end = text->data() + text->size();
    for (int field = 0; field < fields; ++field) {
        while (at < end && *at == ' ') {
            ++at;
        }
        int64_t value = 0;
        const auto parsed = std::from_chars(at, end, value);
        if (parsed.ec != std::errc()) {
            break;  // old kernels have fewer fields
        }
        at = parsed.ptr;
        if (field == steal_field) {
            ticks.steal = value;
        } else {
            (field == idle_field || field == iowait_field ? ticks.idle : ticks.busy) += value;
        }
    }
    return ticks;
}

OthersCpu others_cpu(const std::optional<CpuTicks> & before, const std::optional<CpuTicks> & after, double own_s) {
    OthersCpu others;
    const long ticks_per_s = sysconf(_SC_CLK_TCK);
    if (!before || !after || ticks_per_s <= 0) {
        return others;
    }
    const auto seconds = [&](int64_t ticks) { return static_cast<double>(ticks) / static_cast<double>(ticks_per_s); };
    // The machine is counted in ticks and the engine to the nanosecond: on an idle machine the difference goes below 0.
    others.neighbour_s = std::max(0.0, seconds(after->busy - before->busy) - own_s);
    if (before->steal && after->steal) {
        others.steal_s = std::max(0.0, seconds(*after->steal - *before->steal));
    }
    return others;
}

}  // namespace launcher
