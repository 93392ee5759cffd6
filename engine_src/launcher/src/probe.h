// A calibrated probe: work that is the same on every run, so that only the device's speed can change its time.
// It is the one thermometer that a virtual machine or a locked-down phone has.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace launcher {

class JsonWriter;

struct ProbeResult {
    std::optional<double> compute_ms;      // median over the repetitions
    std::optional<double> compute_cpu_ms;  // the same in CPU time: blind to neighbours that take the core away
    std::optional<double> compute_min_ms;  // the least disturbed repetition
    int64_t compute_reps = 0;
    std::optional<double> read_ms;         // median time of the whole set of reads
    std::optional<double> read_min_ms;
    int64_t read_reps = 0;
    std::optional<int64_t> read_bytes;     // of one repetition
    std::optional<bool> read_direct;       // false: only buffered reads work on this file
    double wall_s = 0;
};

// With a file, half of the time is given to each part; every part has at least one repetition. `stop` is asked
// between repetitions, and a probe that was stopped is not a measurement: nothing is returned.
std::optional<ProbeResult> run_probe(double seconds, const std::string & file, const std::function<bool()> & stop);

void write_json(JsonWriter & json, const ProbeResult & probe);

}  // namespace launcher
