#include "session_input.h"

#include "error.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

namespace moe {

SessionInput::SessionInput(int fd) : fd_(fd) {
    if (pipe(wake_) != 0) {
        throw Error(ExitCode::other, std::string("cannot create a pipe: ") + std::strerror(errno));
    }
    thread_ = std::thread([this] {
        try {
            read_lines();
        } catch (const std::exception & error) {
            push(End{error.what()});
        }
    });
}

SessionInput::~SessionInput() {
    close(wake_[1]);
    thread_.join();
    close(wake_[0]);
}

SessionInput::Event SessionInput::next() {
    std::unique_lock<std::mutex> lock(mutex_);
    running_ = {};
    arrived_.wait(lock, [this] { return !events_.empty(); });
    Event event = std::move(events_.front());
    events_.pop_front();
    if (const auto * generation = std::get_if<Generation>(&event)) {
        running_.request.id = generation->request.id;
        running_.cancelled = generation->cancelled;
    }
    return event;
}

void SessionInput::push(Event event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back(std::move(event));
    arrived_.notify_one();
}

void SessionInput::cancel(const CancelRequest & request) {
    const auto cancel_if_meant = [&](const Generation & generation) {
        if (generation.cancelled && (!request.id || *request.id == generation.request.id)) {
            *generation.cancelled = true;
        }
    };
    const std::lock_guard<std::mutex> lock(mutex_);
    cancel_if_meant(running_);
    for (const Event & event : events_) {
        if (const auto * generation = std::get_if<Generation>(&event)) {
            cancel_if_meant(*generation);
        }
    }
}

bool SessionInput::take_line(const std::string & line) {
    if (line.size() > kMaxLine) {
        push(BadRequest{0, "the line is longer than " + std::to_string(kMaxLine) + " bytes"});
        return true;
    }
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
        return true;
    }
    Request request = parse_request(line);
    if (std::holds_alternative<CloseRequest>(request)) {
        return false;
    }
    if (const auto * asked = std::get_if<CancelRequest>(&request)) {
        cancel(*asked);
    } else if (auto * generate = std::get_if<GenerateRequest>(&request)) {
        push(Generation{std::move(*generate), std::make_shared<std::atomic<bool>>(false)});
    } else {
        push(std::get<BadRequest>(std::move(request)));
    }
    return true;
}

void SessionInput::read_lines() {
    std::string line;
    char buffer[16384];
    for (;;) {
        pollfd ready[2] = {{fd_, POLLIN, 0}, {wake_[0], POLLIN, 0}};
        if (poll(ready, 2, -1) < 0 && errno != EINTR) {
            push(End{std::string("cannot wait for standard input: ") + std::strerror(errno)});
            return;
        }
        if (ready[1].revents != 0) {
            return;
        }
        if (ready[0].revents == 0) {
            continue;
        }
        const ssize_t n = read(fd_, buffer, sizeof buffer);
        if (n < 0 && errno != EINTR && errno != EAGAIN) {
            push(End{std::string("cannot read standard input: ") + std::strerror(errno)});
            return;
        }
        if (n == 0) {
            take_line(line);
            push(End{});
            return;
        }
        for (ssize_t i = 0; i < n; ++i) {
            if (buffer[i] != '\n') {
                if (line.size() <= kMaxLine) {  // of a longer one there is enough to refuse it
                    line += buffer[i];
                }
                continue;
            }
            if (!take_line(line)) {
                push(End{});
                return;
            }
            line.clear();
        }
    }
}

}  // namespace moe
