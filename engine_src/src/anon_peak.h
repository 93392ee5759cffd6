#pragma once

#include "process.h"

#include <cstdint>
#include <optional>

namespace moe {

// Resident anonymous memory only grows while the engine works; looking after each call finds its peak.
class AnonPeak {
public:
    void look() {
        const std::optional<uint64_t> now = anon_resident_bytes();
        if (now && (!peak_ || *now > *peak_)) {
            peak_ = now;
        }
    }
    std::optional<uint64_t> bytes() const { return peak_; }

private:
    std::optional<uint64_t> peak_;
};

}  // namespace moe
