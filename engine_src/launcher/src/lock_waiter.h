// Word of the moment at which a lock is let go of, without asking for it again and again.
#pragma once

#include <sys/types.h>

#include "unique_fd.h"

namespace launcher {

class LockWaiter {
public:
    LockWaiter() = default;
    LockWaiter(const LockWaiter &) = delete;
    LockWaiter & operator=(const LockWaiter &) = delete;
    ~LockWaiter() { stop(); }

    // A child sleeps until the lock on the open file is free. Throws std::runtime_error when none can be made.
    void start(const UniqueFd & lock);
    void stop();

    // Becomes readable when the lock was let go of; negative: nobody waits.
    int fd() const { return word_.get(); }

private:
    pid_t child_ = -1;
    UniqueFd word_;
};

}  // namespace launcher
