// The kinds of telemetry lines, put together from what a run knows.
#pragma once

#include "memory_plan.h"
#include "model_facts.h"
#include "options.h"
#include "pager.h"
#include "perplexity.h"
#include "ram_budget.h"
#include "telemetry.h"

#include "llama.h"

#include <cstdint>
#include <optional>
#include <string>

namespace moe {

struct StartReport {
    const Options & options;
    const ModelFacts & facts;
    const llama_model * model = nullptr;
    const std::optional<PagerInfo> & pager;  // empty in plain mode
    const ForcedRoutes * forced = nullptr;
    const MemoryPlan & plan;
    const std::optional<RamBudget> & budget;
    double load_s = 0;
};

// How the model took to a text that was given to it.
struct GivenText {
    uint64_t tokens = 0;
    uint64_t agreed = 0;  // that the model would have chosen itself
    double nll = 0;       // sum over tokens, in nats
};

struct SummaryReport {
    uint64_t tokens = 0;
    std::optional<std::string> stopped_by;  // empty: nothing was to be generated
    uint64_t n_prompt = 0;  // of the prompt or of the scored text, all that was evaluated in batches
    CallCost prefill;
    CallCost decode;
    double load_s = 0;
    std::optional<std::string> ids_sha256;
    std::optional<std::string> logits_sha256;
    std::optional<uint64_t> anon_peak_bytes;
    std::optional<GivenText> given;
    std::optional<Perplexity> perplexity;
    const PredictionScore * prediction = nullptr;
    const ControlWatchdog * watchdog = nullptr;
};

std::string start_line(const StartReport & report);
std::string prefill_line(uint64_t n_prompt, const CallCost & cost);
std::string chunk_line(uint64_t chunk, const NllStatistics & so_far, const CallCost & cost);
std::string token_line(uint64_t token, int32_t id, const std::string & bytes, const CallCost & cost);
std::string summary_line(const SummaryReport & report);

}  // namespace moe
