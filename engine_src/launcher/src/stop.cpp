#include "stop.h"

#include <algorithm>
#include <cstdio>

namespace launcher {

bool Stop::wait_until(int64_t monotonic_deadline_ns) {
    const bool leased = lease_ && !host_lost_;
    const int64_t until_ns = leased ? std::min(monotonic_deadline_ns, lease_->due_ns() + 1) : monotonic_deadline_ns;
    if (signals_.wait_until(until_ns) && reason_.empty()) {
        reason_ = signals_.reason();
    }
    if (leased && lease_->over()) {
        host_lost_ = true;
        if (reason_.empty()) {
            char seconds[32];
            std::snprintf(seconds, sizeof seconds, "%g", lease_->seconds());
            reason_ = std::string("the host gave no sign of life for ") + seconds + " s";
        }
    }
    return !reason_.empty();
}

}  // namespace launcher
