// Whether the run is to end before its time: somebody said so, or the host is lost.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lease.h"
#include "signals.h"

namespace launcher {

class Stop {
public:
    Stop(Signals & signals, std::optional<Lease> lease) : signals_(signals), lease_(std::move(lease)) {}

    // Waits until the time, a signal or the end of the lease; true when a stop was asked for, now or before.
    bool wait_until(int64_t monotonic_deadline_ns);

    // Without waiting.
    bool asked() { return wait_until(0); }

    // Why, in words; empty when no stop was asked for.
    const std::string & reason() const { return reason_; }

    // The lease was over at some time, whatever else there was to end for.
    bool host_lost() const { return host_lost_; }

private:
    Signals & signals_;
    std::optional<Lease> lease_;
    std::string reason_;
    bool host_lost_ = false;
};

}  // namespace launcher
