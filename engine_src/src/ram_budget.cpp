#include "ram_budget.h"

namespace moe {

namespace {

constexpr uint64_t mebibyte = uint64_t{1} << 20;

std::string mib_up(uint64_t bytes) { return std::to_string((bytes + mebibyte - 1) / mebibyte); }

std::string needs(uint64_t needed, const char * where, uint64_t allowed, const char * flag) {
    return "needs " + std::to_string(needed) + " bytes of anonymous memory" + where + ", allowed " +
           std::to_string(allowed) + " (" + flag + ")";
}

}  // namespace

RamBudget divide_budget(uint64_t ram_budget_bytes, std::optional<uint64_t> reserve_asked,
                        uint64_t reserve_measured_bytes) {
    return {ram_budget_bytes, reserve_asked.value_or(reserve_measured_bytes), reserve_measured_bytes};
}

std::optional<std::string> budget_refusal(const RamBudget & budget, uint64_t least_arena_bytes) {
    if (budget.reserve_bytes < budget.reserve_measured_bytes) {
        return needs(budget.reserve_measured_bytes, " beside the expert arena", budget.reserve_bytes, "--reserve-mb") +
               ": give --reserve-mb " + mib_up(budget.reserve_measured_bytes) + " or more, or leave it to be measured";
    }
    if (budget.arena_bytes() < least_arena_bytes) {
        const uint64_t needed = budget.reserve_bytes + least_arena_bytes;
        return "expert arena too small: " + needs(needed, "", budget.ram_budget_bytes, "--ram-budget-mb") +
               ": the least arena takes " + std::to_string(least_arena_bytes) + ", everything else " +
               std::to_string(budget.reserve_bytes) + "; give --ram-budget-mb " + mib_up(needed) + " or more";
    }
    return std::nullopt;
}

}  // namespace moe
