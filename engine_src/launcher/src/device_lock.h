// The lock of a whole device: one campaign at a time, and others are told whose it is.
#pragma once

#include "options.h"

namespace launcher {

// Detaches a process that keeps the lock for as long as the campaign needs it. Returns the exit code.
int hold(const Options & options);

// Ends the holder whose token it is, and waits until the lock is free. Returns the exit code.
int release(const Options & options);

}  // namespace launcher
