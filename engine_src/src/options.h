// The command line: pure parsing and validation, no look at files or at the machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace moe {

enum class DenseWeights { mmap, anon };

struct Options {
    std::string model;
    std::optional<std::string> prompt;
    std::optional<std::string> prompt_file;
    int32_t n_predict = 128;
    uint32_t n_ctx = 1024;
    uint32_t n_batch = 128;
    int32_t threads = 1;

    bool moe_stream = false;
    uint64_t cache_mb = 0;
    int32_t io_threads = 4;
    bool direct_io = true;
    DenseWeights dense_weights = DenseWeights::mmap;

    bool repack = false;
    std::optional<int32_t> expert_used;
    bool stop_at_eog = true;
    bool logits_digest = false;
    std::optional<std::string> csv;
    std::optional<std::string> telemetry;
    bool plan_memory = false;
    bool progress = false;

    bool help = false;
    bool version = false;
};

// `args` without the program's name; `cores` is what the default of --threads derives from.
// Throws Error(usage) with one line that names the flag.
Options parse_options(const std::vector<std::string> & args, unsigned cores);

std::string help_text();

}  // namespace moe
