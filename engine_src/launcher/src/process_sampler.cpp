#include "process_sampler.h"

#include <string>

#include "files.h"

namespace launcher {

bool parse_status(std::string_view text, ProcessSample & sample) {
    constexpr int64_t kib = 1024;
    // In the order in which every kernel prints them, so that one pass over the text finds all.
    size_t at = 0;
    const auto kib_field = [&](std::string_view key, int64_t & bytes) {
        const auto value = int_after(text, key, at);
        bytes = value ? *value * kib : -1;
    };
    kib_field("\nVmHWM:", sample.rss_high_water_bytes);
    kib_field("\nVmRSS:", sample.rss_bytes);
    kib_field("\nRssAnon:", sample.anon_bytes);  // since Linux 4.5
    kib_field("\nVmData:", sample.vm_data_bytes);
    kib_field("\nVmSwap:", sample.swap_bytes);
    sample.threads = int_after(text, "\nThreads:", at).value_or(-1);
    return sample.rss_bytes >= 0;
}

bool parse_stat(std::string_view text, ProcessSample & sample) {
    // The second field is the name in parentheses, which may itself hold blanks and parentheses.
    const size_t name_end = text.rfind(')');
    if (name_end == std::string_view::npos) {
        return false;
    }
    constexpr int first_field = 3;  // numbered as in proc(5)
    constexpr int minflt_field = 10, majflt_field = 12, utime_field = 14, stime_field = 15;
    size_t at = name_end + 1;
    for (int field = first_field; field <= stime_field; ++field) {
        at = text.find(' ', at);
        if (at == std::string_view::npos) {
            return false;
        }
        ++at;
        int64_t * const target = field == minflt_field   ? &sample.minflt
                                 : field == majflt_field ? &sample.majflt
                                 : field == utime_field  ? &sample.user_ticks
                                 : field == stime_field  ? &sample.system_ticks
                                                         : nullptr;
        if (target != nullptr) {
            *target = parse_int(text.substr(at)).value_or(-1);
        }
    }
    return true;
}

ProcessSampler::ProcessSampler(pid_t pid)
    : status_(open_to_read("/proc/" + std::to_string(pid) + "/status")),
      stat_(open_to_read("/proc/" + std::to_string(pid) + "/stat")),
      ticks_per_s_(sysconf(_SC_CLK_TCK)) {
    if (ticks_per_s_ <= 0) {
        ticks_per_s_ = 100;
    }
}

bool ProcessSampler::read(ProcessSample & sample) {
    return parse_status(read_again(status_.get(), buffer_, sizeof buffer_), sample) &&
           parse_stat(read_again(stat_.get(), buffer_, sizeof buffer_), sample);
}

}  // namespace launcher
