#include "io_pool.h"

#include "clock.h"
#include "error.h"

#include <cstring>
#include <exception>

namespace moe {

ReadBatch::~ReadBatch() {
    std::unique_lock<std::mutex> lock(pool_.mutex_);
    pool_.done_.wait(lock, [this] { return pending_ == 0; });
}

void ReadBatch::submit(const std::vector<ReadRequest> & requests) { pool_.submit(requests, *this); }

void ReadBatch::wait() { pool_.wait(*this); }

IoPool::IoPool(const ShardFiles & files, int n_lanes) : files_(files) {
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
    return counters_;
}

void IoPool::submit(const std::vector<ReadRequest> & requests, ReadBatch & batch) {
    if (requests.empty()) {
        return;
    }
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (const ReadRequest & request : requests) {
            queue_.push_back({request, &batch});
        }
        batch.pending_ += requests.size();
        if (unserved_ == 0) {
            busy_since_ns_ = now_ns();
        }
        unserved_ += requests.size();
    }
    work_.notify_all();
}

void IoPool::wait(ReadBatch & batch) {
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [&] { return batch.pending_ == 0; });
    if (batch.failed_) {
        throw Error(ExitCode::io, batch.failure_);
    }
}

void IoPool::run_lane() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        work_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (queue_.empty()) {
            return;  // stopping, and everything that was asked for has been served
        }
        const Job job = queue_.front();
        queue_.pop_front();

        // One lost read makes the batch useless; the rest of it is not worth the wait.
        if (!job.batch->failed_) {
            uint64_t bytes = 0;
            std::string failure;
            lock.unlock();
            try {
                bytes = files_.read(job.request);
            } catch (const std::exception & error) {
                failure = error.what();
            }
            lock.lock();
            counters_.reads += 1;
            counters_.read_bytes += bytes;
            if (!failure.empty() && !job.batch->failed_) {
                job.batch->failed_ = true;
                job.batch->failure_ = failure;
            }
        }
        if (--unserved_ == 0) {
            counters_.io_ms += ns_to_ms(now_ns() - busy_since_ns_);
        }
        if (--job.batch->pending_ == 0) {
            done_.notify_all();
        }
    }
}

}  // namespace moe
