// The instructions that ggml's kernels were compiled for, and whether the CPU has them.
#pragma once

#include <cstdint>
#include <string>

namespace moe {

// Name of the level: MOE_CPU_LEVEL of the build.
std::string cpu_level();

// What of an aarch64 level a CPU lacks, by the names that /proc/cpuinfo has for it, joined by commas; empty when it
// has all. `hwcap` and `hwcap2` are AT_HWCAP and AT_HWCAP2 of the auxiliary vector.
std::string missing_of_arm_level(const std::string & level, uint64_t hwcap, uint64_t hwcap2);

// Refuses, in one line, a CPU that lacks the instructions this build was made for. Throws Error(other).
void require_cpu();

}  // namespace moe
