#include "thread_waits.h"

#include "files.h"

namespace launcher {

std::optional<int64_t> parse_wait_ns(std::string_view schedstat) {
    const size_t blank = schedstat.find(' ');
    const auto cpu_ns = parse_int(schedstat);
    if (blank == std::string_view::npos || cpu_ns.value_or(0) <= 0) {
        return std::nullopt;
    }
    return parse_int(schedstat.substr(blank));
}

ThreadWaits::ThreadWaits(pid_t pid, const std::string & proc_root)
    : tasks_(proc_root + "/" + std::to_string(pid) + "/task") {}

void ThreadWaits::sample() {
    char buffer[128];
    for (const std::string & id : list_names(tasks_, "")) {
        Thread & thread = threads_[id];
        if (!thread.schedstat) {
            thread.schedstat = open_to_read(tasks_ + "/" + id + "/schedstat");
        }
        const std::string_view text = read_again(thread.schedstat.get(), buffer, sizeof buffer);
        if (text.empty()) {
            thread.schedstat.reset();  // it ended; who is listed next under its id is another
            continue;
        }
        const auto waited_ns = parse_wait_ns(text);
        if (waited_ns && *waited_ns < thread.waited_ns.value_or(0)) {
            replaced_ns_ += *thread.waited_ns;
        }
        if (waited_ns) {
            thread.waited_ns = waited_ns;
        }
    }
}

std::optional<int64_t> ThreadWaits::total_ns() const {
    std::optional<int64_t> sum_ns;
    for (const auto & [id, thread] : threads_) {
        if (thread.waited_ns) {
            sum_ns = sum_ns.value_or(replaced_ns_) + *thread.waited_ns;
        }
    }
    return sum_ns;
}

}  // namespace launcher
