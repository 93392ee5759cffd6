// Locks on files (flock): the kernel lets go of them when their holder ends, however it ends, and at a restart.
// What a lock file contains says nothing about whether it is held.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "unique_fd.h"

namespace launcher {

class FileLock {
public:
    // Takes the lock on FILE, which is made where missing, for everyone to use, and never removed. Nothing when
    // another process has it. Throws OutputError when there can be no such lock.
    static std::optional<FileLock> take(const std::string & path);

    // The locked file, open for reading and writing.
    int fd() const { return fd_.get(); }

private:
    explicit FileLock(UniqueFd fd) : fd_(std::move(fd)) {}
    UniqueFd fd_;
};

// For looking at a lock only. Empty: there is no such file. Throws OutputError for what is no lock file.
UniqueFd open_lock(const std::string & path);

// Is the lock on an open file held by somebody? Taking a lock allows for the instant that looking at it takes.
bool is_locked(int fd);

// Of FILE; false when it is absent.
bool is_locked(const std::string & path);

// Other processes that have FILE open and locked, as far as their /proc/PID/fd can be read.
std::vector<pid_t> lock_holders(const std::string & path);

}  // namespace launcher
