#include "lease.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string_view>

#include "clocks.h"
#include "files.h"

namespace launcher {

namespace {

constexpr int64_t ms_ns = 1000000;

int write_all(int fd, const std::string & text) {
    const ssize_t wrote = write(fd, text.data(), text.size());
    if (wrote < 0) {
        return errno;
    }
    return wrote == static_cast<ssize_t>(text.size()) ? 0 : ENOSPC;
}

int replace(const std::string & path, const std::string & text) {
    // By its own name, for the attendant of a connection that was lost may still be there.
    const std::string temporary = path + "." + std::to_string(getpid()) + ".new";
    UniqueFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!fd) {
        return errno;
    }
    int error = write_all(fd.get(), text);
    fd.reset();
    if (error == 0 && rename(temporary.c_str(), path.c_str()) != 0) {
        error = errno;
    }
    if (error != 0) {
        unlink(temporary.c_str());
    }
    return error;
}

// Into the place of an earlier number: needs no room on the disk, and no right to make files. Of the same length, thus
// one small write.
int overwrite(const std::string & path, const std::string & text) {
    const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
    return fd ? write_all(fd.get(), text) : errno;
}

}  // namespace

int write_beat(const std::string & path) {
    char text[32];
    std::snprintf(text, sizeof text, "%015lld\n", static_cast<long long>(monotonic_ns() / ms_ns));
    const int error = replace(path, text);
    return error == 0 || overwrite(path, text) == 0 ? 0 : error;
}

Lease::Lease(std::string beat_file, double lease_s)
    : beat_file_(std::move(beat_file)), lease_ns_(static_cast<int64_t>(lease_s * 1e9)), last_ns_(monotonic_ns()) {}

int64_t Lease::due_ns() const {
    return last_ns_ + lease_ns_;
}

bool Lease::over() {
    // Twice, for a number that was overwritten in place may be met half-way.
    for (int looks = 0; looks < 2 && monotonic_ns() > due_ns(); ++looks) {
        look();
    }
    return monotonic_ns() > due_ns();
}

void Lease::look() {
    const UniqueFd fd = open_to_read(beat_file_);
    char buffer[64];
    const std::string text = trim(read_again(fd.get(), buffer, sizeof buffer));
    if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos) {
        return;
    }
    const auto beat_ms = parse_int(text);
    // A moment that is still to come is of an earlier life of the device.
    if (beat_ms && *beat_ms <= monotonic_ns() / ms_ns) {
        last_ns_ = std::max(last_ns_, *beat_ms * ms_ns);
    }
}

}  // namespace launcher
