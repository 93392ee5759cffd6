// Read lanes: a few threads that turn read requests into bytes, so that several reads are in flight at once.
#pragma once

#include "shard_files.h"

#include <pthread.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace moe {

// Demand: compute waits for it, or is about to. A lane takes up speculation only when no demand is queued.
enum class ReadUrgency { demand, speculative };

// Reads that lanes have done, failed ones (of 0 bytes) included. A read is speculative if it was when a lane began it.
struct IoCounters {
    uint64_t reads = 0;
    uint64_t read_bytes = 0;
    uint64_t speculative_reads = 0;       // of `reads`
    uint64_t speculative_read_bytes = 0;  // of `read_bytes`
    double io_ms = 0;                     // wall time so far with at least one request queued or in flight
};

// One read, as counted in IoCounters.
struct IoEvent {
    ReadRequest request;
    int lane = 0;
    bool speculative = false;
    uint64_t read_begin = 0;  // in the file
    uint64_t read_bytes = 0;  // from storage; 0: failed
    int64_t latency_ns = 0;   // in the lane: waiting for one is not part of it
};

class IoPool;

// Reads that belong together. Its destructor takes back what no lane has begun and waits for the rest: the lanes write
// into memory that the owner of the batch is about to reuse. For one thread at a time; the pool must outlive it.
//
// A failure ends only the request that it happened to, and is reported only to those who wait for that request.
// Whoever gets it thrown finds the batch idle.
class ReadBatch {
public:
    explicit ReadBatch(IoPool & pool) : pool_(pool) {}
    ~ReadBatch();
    ReadBatch(const ReadBatch &) = delete;
    ReadBatch & operator=(const ReadBatch &) = delete;

    // Requests are numbered from 0 in the order of submission, over all calls, and lanes begin them in that order.
    void submit(const std::vector<ReadRequest> & requests, ReadUrgency urgency);

    // Until every request has been read or taken back. If one has failed, gives up the others and throws Error(io).
    void wait();

    // Until a request of [first, last) has been read that no earlier call has returned; returns all of those,
    // ascending. Empty if none is to come. If one of [first, last) has failed, gives up the rest of the batch and
    // throws Error(io).
    std::vector<size_t> wait_new(size_t first, size_t last);

    // Takes back what no lane has begun, for good: its memory is not written to. Returns how many requests that were.
    size_t cancel();

    // The same, and waits for what is in flight. Failures are left to ended().
    void stop();

    bool idle() const;           // nothing queued or in flight
    bool ended(size_t i) const;  // request i has been read, completely and without an error

private:
    friend class IoPool;
    enum class State : uint8_t { queued, reading, read, returned, failed, cancelled };

    size_t take_back_queued();
    void become_idle(std::unique_lock<std::mutex> & lock);
    [[noreturn]] void give_up(std::unique_lock<std::mutex> & lock);
    void end(size_t i, std::optional<std::string> failure);

    IoPool & pool_;
    // Guarded by the pool's mutex.
    std::vector<State> states_;
    size_t pending_ = 0;                  // queued or in flight
    std::optional<std::string> failure_;  // the first one
    bool wake_on_each_ = false;           // the owner waits for any request, not for the last
    std::condition_variable progress_;
};

class IoPool {
public:
    using Observer = std::function<void(const IoEvent &)>;

    // A lane runs pread and the observer, so a small stack will do; the default of 8 MiB per thread counts in full
    // against an RLIMIT_DATA budget.
    static constexpr uint64_t kStackBytes = 128 * 1024;
    static constexpr int kMaxLanes = 16;

    // `files` must outlive the pool. 1 to kMaxLanes lanes. The lanes call `observer` after each read and before the
    // read counts as ended, concurrently: it must be thread-safe and must not throw.
    IoPool(const ShardFiles & files, int n_lanes, Observer observer = {});
    ~IoPool();
    IoPool(const IoPool &) = delete;
    IoPool & operator=(const IoPool &) = delete;

    IoCounters counters() const;

private:
    friend class ReadBatch;
    struct Job {
        ReadRequest request;
        ReadBatch * batch = nullptr;
        size_t index = 0;  // in the batch
    };

    void wake(size_t n_requests);
    void run_lane();
    std::optional<std::string> serve(IoEvent & event) const;
    void count(const IoEvent & event);
    void enlist();
    void retire(size_t n_requests);
    void stop();

    const ShardFiles & files_;
    const Observer observer_;
    std::vector<pthread_t> lanes_;
    mutable std::mutex mutex_;
    std::condition_variable work_;
    // Guarded by mutex_.
    std::deque<Job> demand_;
    std::deque<Job> speculation_;
    size_t unserved_ = 0;  // queued or in flight, of all batches
    int64_t busy_since_ns_ = 0;
    IoCounters counters_;
    int n_started_ = 0;
    bool stopping_ = false;
};

}  // namespace moe
