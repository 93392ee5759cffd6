// Reads a session's requests on a thread of its own, so that a cancellation is seen while its generation runs.
#pragma once

#include "session_request.h"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>

namespace moe {

class SessionInput {
public:
    // Longer lines are refused: no prompt is as long, and somebody has to hold it.
    static constexpr size_t kMaxLine = size_t{1} << 20;

    struct Generation {
        GenerateRequest request;
        std::shared_ptr<std::atomic<bool>> cancelled;
    };
    struct End {
        std::string failure;  // why nothing more can be read; empty when the client closed
    };
    using Event = std::variant<Generation, BadRequest, End>;

    // Reads `fd`, which must outlive it, from now on.
    explicit SessionInput(int fd);
    ~SessionInput();
    SessionInput(const SessionInput &) = delete;
    SessionInput & operator=(const SessionInput &) = delete;

    // Waits for the next event, in the order of the lines. The generation that it gave out before counts as done: a
    // cancellation no longer reaches it. After End there is nothing more.
    Event next();

private:
    void read_lines();
    // Whether to read on.
    bool take_line(const std::string & line);
    void push(Event event);
    void cancel(const CancelRequest & request);

    const int fd_;
    int wake_[2];  // a pipe that ends the thread when it is closed
    std::mutex mutex_;
    std::condition_variable arrived_;
    std::deque<Event> events_;
    Generation running_;
    std::thread thread_;  // last: it uses all of the above
};

}  // namespace moe
