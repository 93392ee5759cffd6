// A process that goes on by itself: its own session, nothing of the caller's open, and the caller learns what
// became of its beginning.
#pragma once

#include <sys/types.h>

#include <string>

#include "unique_fd.h"

namespace launcher {

class Detachment {
public:
    // Forks. The child is deaf to SIGHUP; until it is `ready` it has the caller's stdout and stderr, so that what
    // goes wrong is told as if it had not been detached.
    Detachment();

    bool in_child() const { return child_ == 0; }

    // In the child: stdout and stderr go to the log from now on, and the parent may return. Throws OutputError.
    void ready(const std::string & log);

    // In the parent: waits until the child is ready, true, or has ended, false.
    bool wait_until_ready();
    pid_t child() const { return child_; }
    // Of a child that was never ready.
    int exit_code() const { return exit_code_; }

private:
    pid_t child_ = -1;
    UniqueFd report_;
    int exit_code_ = 0;
};

}  // namespace launcher
