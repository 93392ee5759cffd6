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

// Refuses, in one line, a CPU that lacks the instructions this build was made for. Throws Error(other).
void require_cpu();

// Every byte to file descriptor 1. Throws Error(io).
void write_stdout(const std::string & bytes);

// The whole file. Throws Error(io).
std::string read_file(const std::string & path, const char * what);

}  // namespace moe
