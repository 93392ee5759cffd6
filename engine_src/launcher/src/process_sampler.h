// What the kernel says about the memory, faults and CPU time of one process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string_view>

#include "unique_fd.h"

namespace launcher {

// Negative: this kernel does not say.
struct ProcessSample {
    int64_t anon_bytes = -1;
    int64_t rss_bytes = -1;
    int64_t rss_high_water_bytes = -1;
    int64_t vm_data_bytes = -1;
    int64_t swap_bytes = -1;
    int64_t threads = -1;
    int64_t majflt = -1;
    int64_t minflt = -1;
    int64_t user_ticks = -1;
    int64_t system_ticks = -1;
};

// Texts of /proc/<pid>/status and /proc/<pid>/stat into the sample; false when the process has no memory
// any more (it has ended and waits to be collected).
bool parse_status(std::string_view text, ProcessSample & sample);
bool parse_stat(std::string_view text, ProcessSample & sample);

class ProcessSampler {
public:
    // Always the real /proc: the process is real even when the device is made up.
    explicit ProcessSampler(pid_t pid);

    // Neither opens nor allocates: this runs fifty times a second beside the measured program.
    bool read(ProcessSample & sample);

    int64_t ticks_to_ms(int64_t ticks) const { return ticks < 0 ? ticks : ticks * 1000 / ticks_per_s_; }

private:
    UniqueFd status_;
    UniqueFd stat_;
    int64_t ticks_per_s_;
    char buffer_[4096];
};

}  // namespace launcher
