#include "detach.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "errors.h"
#include "files.h"
#include "signals.h"

namespace launcher {

namespace {

// What the caller left open would be kept open for as long as we live: a connection that never ends, a lock.
void close_inherited(int but_fd) {
    for (const std::string & name : list_names("/proc/self/fd", "")) {
        const auto fd = parse_int(name);
        if (fd && *fd > STDERR_FILENO && *fd != but_fd) {
            close(static_cast<int>(*fd));
        }
    }
}

}  // namespace

Detachment::Detachment() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        throw std::runtime_error(std::string("cannot detach: ") + std::strerror(errno));
    }
    UniqueFd read_end(ends[0]);
    UniqueFd write_end(ends[1]);
    child_ = fork();
    if (child_ < 0) {
        throw std::runtime_error(std::string("cannot fork: ") + std::strerror(errno));
    }
    if (child_ != 0) {
        report_ = std::move(read_end);
        return;
    }
    report_ = std::move(write_end);
    read_end.reset();
    close_inherited(report_.get());
    setsid();
    signal(SIGHUP, SIG_IGN);
    const UniqueFd null_fd(open("/dev/null", O_RDWR | O_CLOEXEC));
    if (!null_fd || dup2(null_fd.get(), STDIN_FILENO) < 0) {
        throw std::runtime_error(std::string("cannot detach: /dev/null: ") + std::strerror(errno));
    }
}

void Detachment::ready(const std::string & log) {
    const UniqueFd fd(open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOCTTY, 0666));
    if (!fd || dup2(fd.get(), STDOUT_FILENO) < 0 || dup2(fd.get(), STDERR_FILENO) < 0) {
        throw OutputError("cannot write the log " + log + ": " + std::strerror(errno));
    }
    // Whether the parent still hears it does not matter.
    const char word = 'r';
    while (write(report_.get(), &word, 1) < 0 && errno == EINTR) {
    }
    report_.reset();
}

bool Detachment::wait_until_ready() {
    char word = 0;
    ssize_t got = 0;
    do {
        got = read(report_.get(), &word, 1);
    } while (got < 0 && errno == EINTR);
    if (got == 1) {
        return true;
    }
    int status = 0;
    while (waitpid(child_, &status, 0) < 0) {
        if (errno != EINTR) {
            throw std::runtime_error(std::string("cannot wait for the detached process: ") + std::strerror(errno));
        }
    }
    if (WIFSIGNALED(status)) {
        throw std::runtime_error("the detached process ended by " + signal_name(WTERMSIG(status)) +
                                 " before it was ready");
    }
    exit_code_ = WEXITSTATUS(status);
    return false;
}

}  // namespace launcher
