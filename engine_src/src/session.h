// A session: one model, prompts as they come in on standard input, the expert cache warm between them.
#pragma once

#include "options.h"

namespace moe {

// Returns the exit code when the client has closed. Throws Error with the process's exit code, after it was answered
// as a fatal one.
int run_session(const Options & options);

}  // namespace moe
