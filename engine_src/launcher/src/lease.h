// The host's signs of life, left in a file by `attend`, and the lease that they prolong. Only the monotonic clock
// counts, which no one can set.
#pragma once

#include <cstdint>
#include <string>

namespace launcher {

// Writes the present moment into FILE: milliseconds of the monotonic clock, as one decimal number. A reader sees
// the old or the new one, never half. 0 or errno.
int write_beat(const std::string & path);

class Lease {
public:
    // It begins now, whatever the file says: who made us was alive.
    Lease(std::string beat_file, double lease_s);

    // Before this moment it is not over, so no one need look.
    int64_t due_ns() const;

    // Reads the file, when due. A lease that was over goes on when the host is heard of again.
    bool over();

    double seconds() const { return static_cast<double>(lease_ns_) / 1e9; }

private:
    void look();

    std::string beat_file_;
    int64_t lease_ns_;
    int64_t last_ns_;
};

}  // namespace launcher
