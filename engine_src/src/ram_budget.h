// How a bound on all anonymous memory is divided: what the run takes beside the expert arena is set aside, the arena is
// what is left. Pure arithmetic, no look at the machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace moe {

struct RamBudget {
    uint64_t ram_budget_bytes = 0;
    uint64_t reserve_bytes = 0;           // that the arena leaves free
    uint64_t reserve_measured_bytes = 0;  // what the memory plan says is needed beside the arena

    // 0 when the reserve is all there is.
    uint64_t arena_bytes() const { return ram_budget_bytes > reserve_bytes ? ram_budget_bytes - reserve_bytes : 0; }
};

// `reserve_asked`: empty for exactly what was measured.
RamBudget divide_budget(uint64_t ram_budget_bytes, std::optional<uint64_t> reserve_asked, uint64_t reserve_measured_bytes);

// The line that refuses a budget (exit code memory) whose reserve is below what was measured, or whose arena could not
// hold `least_arena_bytes`; empty when it will do.
std::optional<std::string> budget_refusal(const RamBudget & budget, uint64_t least_arena_bytes);

}  // namespace moe
