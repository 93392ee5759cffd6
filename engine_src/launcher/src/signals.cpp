#include "signals.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "clocks.h"

namespace launcher {

Signals::Signals(Parent parent) : parent_signal_(SIGRTMIN + 2), parent_(getppid()) {
    sigemptyset(&handled_);
    sigaddset(&handled_, SIGCHLD);
    sigaddset(&handled_, SIGTERM);
    sigaddset(&handled_, parent_signal_);
    for (const int signal : {SIGINT, SIGHUP}) {
        struct sigaction now {};
        sigaction(signal, nullptr, &now);
        if (now.sa_handler != SIG_IGN) {
            sigaddset(&handled_, signal);
        }
    }
    // With an inherited SIG_IGN the kernel would collect children for us and lose their exit status.
    signal(SIGCHLD, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);  // the reader of our messages may be gone; the result must still be written
    signal(SIGXFSZ, SIG_IGN);  // a file-size limit shall be an error of write, not our death
    sigprocmask(SIG_BLOCK, &handled_, nullptr);

    if (parent == Parent::ignored) {
        return;
    }
    // A signal of its own, because the kernel sends it also when merely the parent's thread that started us ends.
    prctl(PR_SET_PDEATHSIG, parent_signal_);
    check_parent();  // it may have died before the request took effect
}

void Signals::check_parent() {
    if (reason_.empty() && getppid() != parent_) {
        reason_ = "the launcher's parent died";
    }
}

void Signals::take(int signal) {
    if (signal == parent_signal_) {
        check_parent();
    } else if (signal != SIGCHLD && reason_.empty()) {
        reason_ = "the launcher received " + signal_name(signal);
    }
}

bool Signals::wait_until(int64_t monotonic_deadline_ns) {
    const int64_t left_ns = std::max<int64_t>(0, monotonic_deadline_ns - monotonic_ns());
    timespec span = to_timespec(left_ns);
    int signal = sigtimedwait(&handled_, nullptr, &span);
    while (signal > 0) {  // all that are waiting
        take(signal);
        span = to_timespec(0);
        signal = sigtimedwait(&handled_, nullptr, &span);
    }
    return !reason_.empty();
}

void reset_signals() {
    // Numbers in use by libc's own threads are refused by sigaction, which is as well.
    for (int number = 1; number <= SIGRTMAX; ++number) {
        struct sigaction standard {};
        standard.sa_handler = SIG_DFL;
        sigaction(number, &standard, nullptr);
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
}

std::string signal_name(int signal) {
    static const std::pair<int, const char *> names[] = {
        {SIGABRT, "SIGABRT"}, {SIGALRM, "SIGALRM"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},   {SIGHUP, "SIGHUP"},
        {SIGILL, "SIGILL"},   {SIGINT, "SIGINT"},   {SIGKILL, "SIGKILL"}, {SIGPIPE, "SIGPIPE"}, {SIGQUIT, "SIGQUIT"},
        {SIGSEGV, "SIGSEGV"}, {SIGSYS, "SIGSYS"},   {SIGTERM, "SIGTERM"}, {SIGTRAP, "SIGTRAP"}, {SIGUSR1, "SIGUSR1"},
        {SIGUSR2, "SIGUSR2"}, {SIGXCPU, "SIGXCPU"}, {SIGXFSZ, "SIGXFSZ"},
    };
    for (const auto & [number, name] : names) {
        if (number == signal) {
            return name;
        }
    }
    return "signal " + std::to_string(signal);
}

}  // namespace launcher
