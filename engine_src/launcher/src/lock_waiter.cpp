#include "lock_waiter.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

namespace launcher {

void LockWaiter::start(const UniqueFd & lock) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        throw std::runtime_error(std::string("cannot wait for the lock: ") + std::strerror(errno));
    }
    word_.reset(ends[0]);
    const UniqueFd held_open(ends[1]);  // by the child alone, so that its end is the word
    const pid_t parent = getpid();
    child_ = fork();
    if (child_ < 0) {
        word_.reset();
        throw std::runtime_error(std::string("cannot fork: ") + std::strerror(errno));
    }
    if (child_ != 0) {
        return;
    }
    // In the child. The host must see its connection end with the parent, and so must this process.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1);
    }
    close(STDIN_FILENO);
    close(STDOUT_FILENO);
    close(STDERR_FILENO);
    while (flock(lock.get(), LOCK_SH) != 0 && errno == EINTR) {
    }
    _exit(0);
}

void LockWaiter::stop() {
    if (child_ > 0) {
        kill(child_, SIGKILL);
        while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
        }
    }
    child_ = -1;
    word_.reset();
}

}  // namespace launcher
