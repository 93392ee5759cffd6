// Reading the small text files of /proc and /sys, and numbers out of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "unique_fd.h"

namespace launcher {

UniqueFd open_to_read(const std::string & path);

// Reads from the start of an open file into a caller's buffer: no allocation, and /proc and /sys
// files are generated afresh by each such read. Empty when it cannot be read.
std::string_view read_again(int fd, char * buffer, size_t buffer_bytes);

// The first 64 KiB of a file, or nothing.
std::optional<std::string> read_text(const std::string & path);

// The same without the white space around it: for files that hold one value.
std::optional<std::string> read_value(const std::string & path);

// The integer that the text starts with (white space before it allowed).
std::optional<int64_t> parse_int(std::string_view text);
std::optional<int64_t> read_int(const std::string & path);

// The integer after `key`, searched from `from`, which moves behind it. `key` must include what
// separates it from a longer name, as "\nVmRSS:".
std::optional<int64_t> int_after(std::string_view text, std::string_view key, size_t & from);
std::optional<int64_t> int_after(std::string_view text, std::string_view key);

// The decimal number after `key`.
std::optional<double> decimal_after(std::string_view text, std::string_view key);

// Names in a directory that begin with `prefix`, shorter ones first, so that zone10 comes after zone9.
std::vector<std::string> list_names(const std::string & directory, std::string_view prefix);

std::string trim(std::string_view text);

}  // namespace launcher
