// The three clocks of the launcher. Durations are only ever taken from the monotonic one.
#pragma once

#include <sys/time.h>
#include <time.h>

#include <cstdint>

namespace launcher {

inline int64_t clock_ns(clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return static_cast<int64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

inline int64_t monotonic_ns() { return clock_ns(CLOCK_MONOTONIC); }
inline int64_t process_cpu_ns() { return clock_ns(CLOCK_PROCESS_CPUTIME_ID); }
inline double unix_s() { return static_cast<double>(clock_ns(CLOCK_REALTIME)) / 1e9; }

inline double to_seconds(const timeval & span) {
    return static_cast<double>(span.tv_sec) + static_cast<double>(span.tv_usec) / 1e6;
}

inline timespec to_timespec(int64_t ns) {
    timespec span{};
    span.tv_sec = static_cast<time_t>(ns / 1000000000);
    span.tv_nsec = static_cast<long>(ns % 1000000000);
    return span;
}

inline void sleep_ns(int64_t ns) {
    const timespec span = to_timespec(ns);
    nanosleep(&span, nullptr);
}

}  // namespace launcher
