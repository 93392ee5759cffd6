// What is decided before anything large is allocated: the expert arena's size, and whether the run fits.
#pragma once

#include "memory_plan.h"
#include "model_facts.h"
#include "options.h"
#include "pager.h"
#include "ram_budget.h"

#include <memory>
#include <optional>
#include <string>

namespace moe {

struct PlannedEngine {
    std::unique_ptr<Pager> pager;     // with the arena of the run, not yet reserved; nullptr in plain mode
    std::optional<MemoryPlan> plan;   // empty where nobody wants to know and no limit is set
    std::optional<RamBudget> budget;  // empty without --ram-budget-mb
    // The line that refuses the run (exit code memory). `plan` then is that of the run, or with the least arena.
    std::optional<std::string> refusal;
    double open_s = 0;  // of opening the pager, without planning
};

// At most one dry run is made. Throws Error; a cache that is too small to be of use is refused so (exit code memory).
PlannedEngine plan_engine(const Options & options, const ModelFacts & facts, const std::string & prompt);

}  // namespace moe
