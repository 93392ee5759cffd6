// The command line: pure parsing and validation, no look at files or at the machine.
#pragma once

#include "dump_files.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace moe {

enum class DenseWeights { mmap, warm, anon };
enum class ComputeTraceBy { node, layer };

// A flag that a variable of the environment gives.
struct FlagDefault {
    std::string variable;
    std::string flag;
    std::string value;  // "" for a switch
};

struct Options {
    std::string model;
    std::optional<std::string> prompt;
    std::optional<std::string> prompt_file;
    bool session = false;  // prompts come in on standard input, n_predict is what they default to
    int32_t n_predict = 128;
    uint32_t n_ctx = 1024;
    uint32_t n_batch = 128;
    int32_t threads = 1;

    bool moe_stream = false;
    bool overlap = false;
    uint64_t cache_mb = 0;
    bool cache_auto = false;  // then cache_mb is 0 and the size is found at start
    uint64_t cache_floor_mb = 1536;
    uint64_t cache_ceil_mb = 0;  // 0: none
    bool force_cache = false;
    std::optional<uint64_t> ram_budget_mb;  // then the arena is what is left of it
    std::optional<uint64_t> reserve_mb;     // empty: measured
    std::string evict = "lru";
    int32_t io_threads = 4;
    bool direct_io = true;
    DenseWeights dense_weights = DenseWeights::mmap;
    bool load_all = false;

    int32_t prefetch = 0;
    bool predict_prefetch = false;
    int32_t predict_spec_max = 2;
    int32_t predict_horizon = 2;
    bool predict_log = false;
    std::optional<double> drop_cold_experts;
    bool drop_renorm = true;
    bool drop_in_prefill = false;

    std::optional<std::string> route_trace;
    std::optional<std::string> io_trace;
    std::optional<std::string> compute_trace;
    ComputeTraceBy compute_trace_by = ComputeTraceBy::node;
    std::optional<std::string> forced_routes;
    std::optional<std::string> given_text;
    std::optional<int32_t> ppl_chunks;    // of ppl_file, the first ones only
    std::optional<std::string> ppl_file;  // perplexity of this text instead of generating
    std::optional<std::string> stats;
    std::optional<MoeDump> moe_dump;

    bool repack = false;
    std::optional<int32_t> expert_used;
    bool stop_at_eog = true;
    bool logits_digest = false;
    std::optional<std::string> csv;
    std::optional<std::string> telemetry;
    bool plan_memory = false;
    bool progress = false;

    std::vector<FlagDefault> from_variables;

    bool help = false;
    bool version = false;

    bool has_cache() const { return cache_auto || cache_mb > 0 || ram_budget_mb; }
    std::optional<uint64_t> ram_budget_bytes() const { return bytes_of_mib(ram_budget_mb); }
    std::optional<uint64_t> reserve_bytes() const { return bytes_of_mib(reserve_mb); }

private:
    static std::optional<uint64_t> bytes_of_mib(std::optional<uint64_t> mib) {
        return mib ? std::optional<uint64_t>(*mib << 20) : std::nullopt;
    }
};

// `args` without the program's name; `cores` is what the default of --threads derives from; `variables` (environment.h)
// give flags that are not among `args`, and count for nothing with --help and --version.
// Throws Error(usage) with one line that names the flag, and the variable that it came from.
Options parse_options(const std::vector<std::string> & args, unsigned cores,
                      const std::map<std::string, std::string> & variables = {});

std::string help_text();

}  // namespace moe
