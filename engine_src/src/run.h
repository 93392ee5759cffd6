// One run of the engine: from checked options to generated text, CSV and telemetry.
#pragma once

#include "options.h"

namespace moe {

// Throws Error with the process's exit code. Returns the exit code otherwise: 0, or 4 for a memory plan that
// does not fit.
int run(const Options & options);

}  // namespace moe
