// The `run` command from beginning to end: states, probes, self-test, program, result.
#pragma once

#include <functional>

#include "options.h"
#include "stop.h"

namespace launcher {

// `ready` is called once the lock is held and the files are open: what fails before it has started nothing. Throws
// LockHeld, and OutputError when the result could not be written.
void run(const Options & options, Stop & stop, const std::function<void()> & ready);

}  // namespace launcher
