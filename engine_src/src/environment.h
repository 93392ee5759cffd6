// EPQ_* variables: defaults for flags. Pure: nothing here looks at the process's environment.
#pragma once

#include "option_rules.h"

#include <map>
#include <string>
#include <vector>

namespace moe {

// Those whose names begin with EPQ_.
using Variables = std::map<std::string, std::string>;

// `environment`: entries NAME=VALUE, the last one nullptr.
Variables epq_variables(const char * const * environment);

// What the variables add to the flags on the command line, which win. Throws Error(usage) for a variable that is not
// supported, for a switch that is neither 0 nor 1, and for EPQ_PAGER=0 with a flag of the pager.
std::vector<FlagDefault> flag_defaults(const Variables & variables, const GivenFlags & on_command_line);

// The message, in which flags that came from variables are called so.
std::string name_variables(std::string message, const std::vector<FlagDefault> & defaults);

// Throws Error(usage) when EPQ_REQUIRE_PAGER asks for a pager and the run has none.
void check_required_pager(const Variables & variables, bool streams);

}  // namespace moe
