// What the engine asks of and tells to the operating system about its own process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace moe {

// Makes anonymous memory small and predictable: one malloc arena, big blocks returned on free, small thread
// stacks. Call first thing in main.
void prepare_process();

// Stack reserved for each thread started from now on (its whole size counts against RLIMIT_DATA).
uint64_t thread_stack_bytes();

// Private writable memory of this process, what RLIMIT_DATA limits (VmData); empty where it cannot be read.
std::optional<uint64_t> data_bytes();

// Resident anonymous memory of this process; empty where it cannot be read.
std::optional<uint64_t> anon_resident_bytes();

// The soft RLIMIT_DATA; empty when unlimited.
std::optional<uint64_t> data_limit();

// What the cgroups of this process leave of their memory limits; empty without a limit. The page cache of a group
// counts as free, as in MemAvailable: the kernel gives it up before the limit is reached. Memory controllers of
// version 1 and 2 are looked for where everybody mounts them. `root` stands before every path: tests make up a tree.
std::optional<uint64_t> cgroup_left_bytes(const std::string & root = "");

// Memory that this process could still take without swapping: MemAvailable, within its cgroups' limits. Empty where
// the kernel does not tell.
std::optional<uint64_t> available_memory_bytes(const std::string & root = "");

// Every byte to file descriptor 1. Throws Error(io).
void write_stdout(const std::string & bytes);

// The file, or its first `most` bytes. Throws Error(io).
std::string read_file(const std::string & path, const char * what, uint64_t most = UINT64_MAX);

}  // namespace moe
