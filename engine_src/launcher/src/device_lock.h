// The lock of a whole device: one campaign at a time, and others are told whose it is.
#pragma once

#include <string>

#include "options.h"

namespace launcher {

// Detaches a process that keeps the lock for as long as the campaign needs it. Returns the exit code.
int hold(const Options & options);

// Ends the holder whose token it is, and waits until the lock is free. Returns the exit code.
int release(const Options & options);

// Throws, and changes nothing, unless the open file holds what a device's lock may hold: nothing, or what a holder has
// written there. A path that was mistyped can be anybody's file, and a holder empties its own.
void require_own_content(int fd, const std::string & path);

}  // namespace launcher
