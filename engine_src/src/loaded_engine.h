// Everything that decodes, set up from checked options: what a run and a session have in common.
#pragma once

#include "llama_session.h"
#include "memory_plan.h"
#include "model_facts.h"
#include "node_watcher.h"
#include "options.h"
#include "pager.h"
#include "ram_budget.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace moe {

// The model's facts, once it is known that the options fit them. Throws Error.
ModelFacts check_model(const Options & options);

// Whether a run can be done at all, once the length of its prompt, or of the text to score, is known. Throws
// Error(usage).
void check_length(const Options & options, const Pager * pager, uint64_t n_prompt);

struct ModelRelease {
    void operator()(Pager * pager) const { pager->release_model(); }
};

// In the order of lifetimes: the pager and the thread pool outlive model and context.
struct LoadedEngine {
    std::unique_ptr<Pager> pager;  // nullptr in plain mode
    MemoryPlan plan;               // empty unless somebody wants to know or a limit is set
    std::optional<RamBudget> budget;
    ThreadpoolPtr pool;
    ModelPtr model;
    std::unique_ptr<Pager, ModelRelease> model_in_use;  // the pager's ranking thread reads the model: it ends first
    ContextPtr context;
    double load_s = 0;  // without planning

    const llama_vocab * vocab() const { return llama_model_get_vocab(model.get()); }
};

// `prompt`, or the text to score, may be empty. Throws Error; what a memory limit or the context's length forbids is
// refused before any weights are loaded. `watcher` may be nullptr, else it must outlive the engine.
LoadedEngine load_engine(const Options & options, const ModelFacts & facts, const std::string & prompt,
                         NodeWatcher * watcher = nullptr);

}  // namespace moe
