#include "attend.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "clocks.h"
#include "file_lock.h"
#include "files.h"
#include "json_writer.h"
#include "lease.h"
#include "lock_waiter.h"

namespace launcher {

namespace {

// The last bytes of a file that may grow meanwhile.
std::string read_tail(const TailRequest & request) {
    const UniqueFd fd = open_to_read(request.file);
    struct stat info {};
    if (!fd || fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
        return {};
    }
    std::string text(static_cast<size_t>(std::min<int64_t>(request.bytes, info.st_size)), '\0');
    const off_t from = info.st_size - static_cast<off_t>(text.size());
    size_t used = 0;
    while (used < text.size()) {
        const ssize_t got = pread(fd.get(), text.data() + used, text.size() - used, from + static_cast<off_t>(used));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            break;
        }
        used += static_cast<size_t>(got);
    }
    text.resize(used);
    return text;
}

class Attendant {
public:
    explicit Attendant(const Options & options)
        : options_(options), boot_id_(read_value(options.proc_root + "/sys/kernel/random/boot_id")) {
        heard();
    }

    void serve() {
        look();
        while (wait_for_news() && hear() && told()) {
        }
    }

private:
    void heard() {
        deadline_ns_ = options_.lease_s ? monotonic_ns() + static_cast<int64_t>(*options_.lease_s * 1e9) : INT64_MAX;
    }

    int left_ms() const {
        if (deadline_ns_ == INT64_MAX) {
            return -1;
        }
        const int64_t left = (deadline_ns_ - monotonic_ns() + 999999) / 1000000;
        return static_cast<int>(std::clamp<int64_t>(left, 0, INT_MAX));
    }

    // False when there is no one to serve any more.
    bool wait_for_news() {
        pollfd watched[] = {{STDIN_FILENO, POLLIN, 0}, {STDOUT_FILENO, 0, 0}, {waiter_.fd(), POLLIN, 0}};
        const int ready = poll(watched, 3, left_ms());
        if (ready < 0) {
            return errno == EINTR;
        }
        line_may_be_there_ = watched[0].revents != 0;
        lock_may_be_free_ = watched[2].revents != 0;
        return ready > 0 && (watched[1].revents & (POLLERR | POLLHUP | POLLNVAL)) == 0;
    }

    // Renews the lease for each whole line that has come; what a line says does not matter. False at the end of stdin.
    bool hear() {
        if (!line_may_be_there_) {
            return true;
        }
        char buffer[4096];
        const ssize_t got = read(STDIN_FILENO, buffer, sizeof buffer);
        if (got < 0) {
            return errno == EINTR || errno == EAGAIN;
        }
        lines_ = std::count(buffer, buffer + got, '\n');
        if (lines_ > 0) {
            heard();
            beat_error_ = write_beat(options_.beat_file);
        }
        return got > 0;
    }

    // Answers each line, and tells by itself when the lock was let go of. False when it cannot be told any more.
    bool told() {
        const bool was_running = running_;
        if (lock_may_be_free_ || lines_ > 0) {
            look();
        }
        bool heard_us = true;
        if (lines_ == 0 && was_running && !running_) {
            heard_us = tell();
        }
        for (; lines_ > 0 && heard_us; --lines_) {
            heard_us = tell();
        }
        return heard_us;
    }

    void look() {
        const UniqueFd lock = open_lock(options_.lock);
        running_ = lock && is_locked(lock.get());
        if (lock_may_be_free_ || !running_) {
            waiter_.stop();
            lock_may_be_free_ = false;
        }
        if (running_ && waiter_.fd() < 0) {
            waiter_.start(lock);
        }
    }

    bool tell() {
        JsonWriter json;
        json.begin_object().field("running", running_).field("boot_id", boot_id_);
        json.field("beat_error", beat_error_ != 0 ? std::optional<std::string>(std::strerror(beat_error_)) : std::nullopt);
        json.key("tails").begin_array();
        for (const TailRequest & tail : options_.tails) {
            json.string(read_tail(tail));
        }
        json.end_array().end_object();
        return write_out(json.text() + "\n");
    }

    // Never waits longer than the lease lasts: the reader may be gone without a word.
    bool write_out(std::string_view text) {
        while (!text.empty()) {
            pollfd out{STDOUT_FILENO, POLLOUT, 0};
            const int ready = poll(&out, 1, left_ms());
            if (ready < 0 && errno == EINTR) {
                continue;
            }
            if (ready <= 0 || (out.revents & POLLOUT) == 0) {
                return false;
            }
            // A pipe that can be written has room for this much; of a socket we say that we will not wait.
            const size_t piece = std::min<size_t>(text.size(), PIPE_BUF);
            ssize_t wrote = send(STDOUT_FILENO, text.data(), piece, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (wrote < 0 && errno == ENOTSOCK) {
                wrote = write(STDOUT_FILENO, text.data(), piece);
            }
            if (wrote < 0 && errno != EINTR && errno != EAGAIN) {
                return false;
            }
            text.remove_prefix(wrote > 0 ? static_cast<size_t>(wrote) : 0);
        }
        return true;
    }

    const Options & options_;
    const std::optional<std::string> boot_id_;
    LockWaiter waiter_;
    int64_t deadline_ns_ = INT64_MAX;
    int64_t lines_ = 0;  // that wait for an answer
    bool line_may_be_there_ = false;
    bool lock_may_be_free_ = false;
    bool running_ = false;
    int beat_error_ = 0;
};

}  // namespace

void attend(const Options & options) {
    signal(SIGPIPE, SIG_IGN);
    Attendant(options).serve();
}

}  // namespace launcher
