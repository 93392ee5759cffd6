// The errors that have an exit code of their own; every message is one line for the user.
#pragma once

#include <stdexcept>
#include <string>

namespace launcher {

enum ExitCode : int {
    exit_ok = 0,
    exit_other = 1,
    exit_usage = 2,
    exit_output = 5,
    exit_not_enforced = 6,
    exit_held = 7,
};

struct UsageError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The result, or a file beside it, could not be written.
struct OutputError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Another process has the lock.
struct LockHeld : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace launcher
