// How long the threads of a process were ready to run and waited for a core.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "unique_fd.h"

namespace launcher {

// Second field of /proc/<pid>/task/<tid>/schedstat: "CPU_NS WAIT_NS SLICES". Empty: this kernel does not count (it
// then says "0 0 0"), or the thread has not run yet.
std::optional<int64_t> parse_wait_ns(std::string_view schedstat);

class ThreadWaits {
public:
    // The process is real even when the device is made up; only tests name another root.
    explicit ThreadWaits(pid_t pid, const std::string & proc_root = "/proc");

    // Of a thread that ended, the last value seen stays; one that came and went between two looks is missed.
    void sample();

    // Over all threads seen; empty: none said anything.
    std::optional<int64_t> total_ns() const;

private:
    struct Thread {
        UniqueFd schedstat;  // kept open: opening costs more than reading
        std::optional<int64_t> waited_ns;
    };

    std::string tasks_;
    std::map<std::string, Thread> threads_;  // by thread id
    int64_t replaced_ns_ = 0;                // of threads whose id passed to another
};

}  // namespace launcher
