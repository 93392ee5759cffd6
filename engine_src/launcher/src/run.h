// The `run` command from beginning to end: states, probes, self-test, program, result.
#pragma once

#include "options.h"
#include "signals.h"

namespace launcher {

// Throws OutputError when the result could not be written.
void run(const Options & options, Signals & signals);

}  // namespace launcher
