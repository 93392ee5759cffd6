// A command line from a file, so that no shell on the way sees it.
#pragma once

#include <string>
#include <vector>

namespace launcher {

// `--args-file FILE` stands for all arguments: they are taken from the file, each ended by a NUL. Throws UsageError.
std::vector<std::string> read_args(const std::vector<std::string> & args);

}  // namespace launcher
