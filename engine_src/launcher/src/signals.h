// Signals taken one at a time, at a moment of our choice: they are blocked throughout and fetched with a time-out.
// That makes the wait between two samples, the end of the program and a request to stop one single system call.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <string>

namespace launcher {

class Signals {
public:
    enum class Parent { watched, ignored };

    // Blocks what it handles, for the rest of the process's life. SIGINT and SIGHUP stay ignored when the caller
    // had them ignored (nohup, a shell's background job). The death of a parent that is watched is a stop, too.
    explicit Signals(Parent parent);

    // Waits until the time or a signal; true when a stop was asked for, now or before.
    bool wait_until(int64_t monotonic_deadline_ns);

    // Without waiting: was a stop asked for?
    bool stop_asked() { return wait_until(0); }

    // "the launcher received SIGTERM"; empty when no stop was asked for.
    const std::string & reason() const { return reason_; }

private:
    void take(int signal);
    void check_parent();

    sigset_t handled_;
    int parent_signal_;
    pid_t parent_;
    std::string reason_;
};

// Undoes what the launcher or its caller did to signals; between fork and exec.
void reset_signals();

// "SIGSEGV", or "signal 42".
std::string signal_name(int signal);

}  // namespace launcher
