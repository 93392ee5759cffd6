#include "io_pool.h"

#include "clock.h"
#include "error.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

namespace moe {

ReadBatch::~ReadBatch() {
    std::unique_lock<std::mutex> lock(pool_.mutex_);
    become_idle(lock);
}

void ReadBatch::submit(const std::vector<ReadRequest> & requests, ReadUrgency urgency) {
    if (requests.empty()) {
        return;
    }
    {
        const std::lock_guard<std::mutex> lock(pool_.mutex_);
        std::deque<IoPool::Job> & queue = urgency == ReadUrgency::demand ? pool_.demand_ : pool_.speculation_;
        states_.reserve(states_.size() + requests.size());
        for (const ReadRequest & request : requests) {
            queue.push_back({request, this, states_.size()});
            states_.push_back(State::queued);
            ++pending_;
            pool_.enlist();
        }
    }
    pool_.wake(requests.size());
}

void ReadBatch::wait() {
    std::unique_lock<std::mutex> lock(pool_.mutex_);
    progress_.wait(lock, [this] { return pending_ == 0 || failure_; });
    if (failure_) {
        give_up(lock);
    }
}

void ReadBatch::stop() {
    std::unique_lock<std::mutex> lock(pool_.mutex_);
    become_idle(lock);
}

std::vector<size_t> ReadBatch::wait_new(size_t first, size_t last) {
    std::unique_lock<std::mutex> lock(pool_.mutex_);
    std::vector<size_t> fresh;
    for (;;) {
        bool more = false;
        for (size_t i = first; i < last; ++i) {
            if (states_[i] == State::failed) {
                give_up(lock);
            }
            if (states_[i] == State::read) {
                fresh.push_back(i);
            }
            more |= states_[i] == State::queued || states_[i] == State::reading;
        }
        if (!fresh.empty() || !more) {
            break;
        }
        wake_on_each_ = true;
        progress_.wait(lock);
        wake_on_each_ = false;
    }
    for (const size_t i : fresh) {
        states_[i] = State::returned;
    }
    return fresh;
}

size_t ReadBatch::cancel() {
    const std::lock_guard<std::mutex> lock(pool_.mutex_);
    return take_back_queued();
}

bool ReadBatch::idle() const {
    const std::lock_guard<std::mutex> lock(pool_.mutex_);
    return pending_ == 0;
}

bool ReadBatch::ended(size_t i) const {
    const std::lock_guard<std::mutex> lock(pool_.mutex_);
    return states_[i] == State::read || states_[i] == State::returned;
}

size_t ReadBatch::take_back_queued() {
    const auto take_back = [this](const IoPool::Job & job) {
        if (job.batch != this) {
            return false;
        }
        states_[job.index] = State::cancelled;
        return true;
    };
    size_t n = 0;
    for (std::deque<IoPool::Job> * queue : {&pool_.demand_, &pool_.speculation_}) {
        const auto kept = std::remove_if(queue->begin(), queue->end(), take_back);
        n += static_cast<size_t>(queue->end() - kept);
        queue->erase(kept, queue->end());
    }
    pending_ -= n;
    pool_.retire(n);
    return n;
}

void ReadBatch::become_idle(std::unique_lock<std::mutex> & lock) {
    take_back_queued();
    progress_.wait(lock, [this] { return pending_ == 0; });
}

void ReadBatch::give_up(std::unique_lock<std::mutex> & lock) {
    become_idle(lock);
    throw Error(ExitCode::io, *failure_);
}

// The owner may destroy the batch as soon as the lane that calls this lets go of the mutex.
void ReadBatch::end(size_t i, std::optional<std::string> failure) {
    states_[i] = failure ? State::failed : State::read;
    if (failure && !failure_) {
        failure_ = std::move(failure);
    }
    --pending_;
    if (pending_ == 0 || failure_ || wake_on_each_) {
        progress_.notify_one();
    }
}

IoPool::IoPool(const ShardFiles & files, int n_lanes, Observer observer)
    : files_(files), observer_(std::move(observer)) {
    if (n_lanes < 1 || n_lanes > kMaxLanes) {
        throw Error(ExitCode::usage, "I/O threads must be 1 to " + std::to_string(kMaxLanes));
    }
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, kStackBytes);
    int rc = 0;
    for (int i = 0; i < n_lanes && rc == 0; ++i) {
        pthread_t lane{};
        rc = pthread_create(
            &lane, &attr,
            [](void * self) -> void * {
                static_cast<IoPool *>(self)->run_lane();
                return nullptr;
            },
            this);
        if (rc == 0) {
            lanes_.push_back(lane);
        }
    }
    pthread_attr_destroy(&attr);
    if (rc != 0) {
        stop();
        throw Error(ExitCode::other, std::string("cannot start a read lane: ") + std::strerror(rc));
    }
}

IoPool::~IoPool() { stop(); }

void IoPool::stop() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    work_.notify_all();
    for (const pthread_t lane : lanes_) {
        pthread_join(lane, nullptr);
    }
    lanes_.clear();
}

IoCounters IoPool::counters() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    IoCounters counters = counters_;
    if (unserved_ > 0) {
        counters.io_ms += ns_to_ms(now_ns() - busy_since_ns_);
    }
    return counters;
}

// No more lanes than there is work for: one that wakes up for nothing costs as much as one that reads.
void IoPool::wake(size_t n_requests) {
    for (size_t i = 0; i < std::min(n_requests, lanes_.size()); ++i) {
        work_.notify_one();
    }
}

void IoPool::run_lane() {
    std::unique_lock<std::mutex> lock(mutex_);
    const int lane = n_started_++;
    for (;;) {
        work_.wait(lock, [this] { return stopping_ || !demand_.empty() || !speculation_.empty(); });
        if (stopping_) {
            return;  // every batch has gone before, and what it had queued with it
        }
        const bool speculative = demand_.empty();
        std::deque<Job> & queue = speculative ? speculation_ : demand_;
        const Job job = queue.front();
        queue.pop_front();
        job.batch->states_[job.index] = ReadBatch::State::reading;

        lock.unlock();
        IoEvent event{job.request, lane, speculative};
        std::optional<std::string> failure = serve(event);
        lock.lock();

        count(event);
        retire(1);
        job.batch->end(job.index, std::move(failure));
    }
}

// Returns why it failed, if it did.
std::optional<std::string> IoPool::serve(IoEvent & event) const {
    std::optional<std::string> failure;
    const int64_t begin = now_ns();
    try {
        event.read_bytes = files_.read(event.request);
    } catch (const std::exception & error) {
        failure = error.what();
    }
    event.latency_ns = now_ns() - begin;
    event.read_begin = files_.begin(event.request);
    if (observer_) {
        observer_(event);
    }
    return failure;
}

void IoPool::count(const IoEvent & event) {
    counters_.reads += 1;
    counters_.read_bytes += event.read_bytes;
    if (event.speculative) {
        counters_.speculative_reads += 1;
        counters_.speculative_read_bytes += event.read_bytes;
    }
}

void IoPool::enlist() {
    if (unserved_ == 0) {
        busy_since_ns_ = now_ns();
    }
    ++unserved_;
}

void IoPool::retire(size_t n_requests) {
    if (n_requests == 0) {
        return;
    }
    unserved_ -= n_requests;
    if (unserved_ == 0) {
        counters_.io_ms += ns_to_ms(now_ns() - busy_since_ns_);
    }
}

}  // namespace moe
