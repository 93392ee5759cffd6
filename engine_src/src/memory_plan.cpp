#include "memory_plan.h"

#include "error.h"
#include "json.h"
#include "model_facts.h"
#include "pager.h"
#include "process.h"
#include "session_input.h"

#include <algorithm>

namespace moe {

namespace {

// Heap that appears only once decoding runs (scheduler, batches, telemetry), and the unevenness of malloc.
constexpr uint64_t base_reserve = uint64_t{4} << 20;

// What the smallest models take (mostly graph metadata), and how often the file's metadata is held while loading.
constexpr uint64_t base_least = uint64_t{24} << 20;
constexpr uint64_t metadata_copies = 3;

// A request is read, parsed and served: the longest line, while the one before is still held.
constexpr uint64_t line_copies = 6;

void set_allowed(MemoryPlan & plan, const Options & options) {
    plan.allowed_bytes = data_limit();
    plan.allowed_by = "RLIMIT_DATA";
    const std::optional<uint64_t> budget = options.ram_budget_bytes();
    plan.budget_above_limit = budget && plan.allowed_bytes && *budget > *plan.allowed_bytes;
    if (budget && !plan.budget_above_limit) {
        plan.allowed_bytes = budget;
        plan.allowed_by = "--ram-budget-mb";
    }
}

}  // namespace

uint64_t MemoryPlan::needed_bytes() const {
    return arena_bytes + dense_bytes + kv_bytes + compute_bytes + stack_bytes + io_bytes + base_bytes;
}

std::string MemoryPlan::json() const {
    return JsonObject()
        .text("type", std::string("memory_plan"))
        .number("arena_bytes", arena_bytes)
        .number("dense_bytes", dense_bytes)
        .number("kv_bytes", kv_bytes)
        .number("compute_bytes", compute_bytes)
        .number("stack_bytes", stack_bytes)
        .number("io_bytes", io_bytes)
        .number("base_bytes", base_bytes)
        .number("needed_bytes", needed_bytes())
        .number("allowed_bytes", allowed_bytes)
        .str();
}

std::string MemoryPlan::refusal() const {
    return "needs " + std::to_string(needed_bytes()) + (lower_bound ? " bytes or more" : " bytes") +
           " of anonymous memory, allowed " + std::to_string(allowed_bytes.value_or(0)) + " (" + allowed_by + ")" +
           (budget_above_limit ? ": give --ram-budget-mb " + std::to_string(*allowed_bytes >> 20) + " or less" : "");
}

MemoryPlan plan_memory(const Options & options, const ModelFacts & facts, const std::optional<DryRun> & dry,
                       const std::optional<PagerInfo> & pager) {
    MemoryPlan plan;
    set_allowed(plan, options);
    // Compute threads beside the main one, and the reader of a session's requests.
    plan.stack_bytes = static_cast<uint64_t>(options.threads - 1 + (options.session ? 1 : 0)) * thread_stack_bytes();
    if (pager) {
        plan.arena_bytes = pager->arena_bytes;
        plan.dense_bytes = pager->dense_anon_bytes;
        plan.io_bytes = options.ram_budget_mb ? pager->io_buffer_most_bytes : pager->io_buffer_bytes;
        plan.stack_bytes += pager->thread_stack_bytes;
    }
    if (!dry) {
        // Not even the metadata fits, and the limit could not be lifted to find out more: a lower bound.
        plan.lower_bound = true;
        plan.base_bytes = base_least + metadata_copies * facts.metadata_bytes;
        if (!data_limit()) {
            throw Error(ExitCode::memory, "needs more memory than it takes to find out how much: lower --ctx-size " +
                                              std::to_string(options.n_ctx) + " or --batch-size " +
                                              std::to_string(options.n_batch));
        }
        const uint64_t known = plan.needed_bytes();
        plan.base_bytes += known <= *plan.allowed_bytes ? *plan.allowed_bytes + 1 - known : 0;
        return plan;
    }
    plan.dense_bytes += dry->repacked_bytes;
    plan.kv_bytes = dry->kv_bytes;
    // A second scratch buffer: the pager computes experts on a CPU backend of its own.
    plan.compute_bytes = dry->graph_bytes + dry->logits_bytes + dry->scratch_bytes * (pager ? 2 : 1);
    plan.base_bytes = dry->base_bytes + base_reserve + (options.session ? line_copies * SessionInput::kMaxLine : 0);
    plan.n_prompt = dry->n_prompt;
    return plan;
}

}  // namespace moe
