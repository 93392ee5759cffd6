// Which flags go together: one rule for every combination in which a flag could not act.
#pragma once

#include "options.h"

#include <set>
#include <string>

namespace moe {

// Long names of the flags on the command line.
using GivenFlags = std::set<std::string>;

// Whether a flag (by its long name) asks for streaming or acts on nothing but it.
bool is_pager_flag(const std::string & name);

// Throws Error(usage) with one line that names the flags and says what to do.
void check_combinations(const Options & options, const GivenFlags & given);

}  // namespace moe
