// The command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace launcher {

enum class Verb { run, probe, state, selftest, attend, hold, release, locked, end, evict, digest, inspect, version, help };

struct TailRequest {
    std::string file;
    int64_t bytes = 0;
};

struct Options {
    Verb verb = Verb::help;
    std::string dir;
    std::optional<int64_t> data_limit_bytes;
    std::optional<int64_t> cgroup_limit_bytes;
    std::string cgroup_mode;  // required: without that limit nothing is started; else it is only wanted
    std::optional<double> time_limit_s;
    int64_t sample_ms = 20;
    int64_t device_ms = 250;
    double probe_s = 1.0;
    std::string probe_file;
    std::string proc_root = "/proc";
    std::string sys_root = "/sys";
    std::vector<std::string> env;  // K=V
    std::string cwd;
    std::vector<std::string> program;  // with its arguments
    bool detach = false;
    std::string log;
    std::string lock;
    std::string beat_file;
    std::optional<double> lease_s;
    std::vector<TailRequest> tails;
    std::string owner;       // JSON text
    std::string while_lock;  // the lock that the holder outlives
    std::string token;
    bool no_sha256 = false;
    std::vector<std::string> paths;
};

// Throws UsageError. An option that the verb has no use for is refused.
Options parse_options(const std::vector<std::string> & args);

extern const char * const usage_text;

}  // namespace launcher
