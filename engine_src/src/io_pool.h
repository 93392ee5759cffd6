// Read lanes: a few threads that turn read requests into bytes, so that several reads are in flight at once.
#pragma once

#include "shard_files.h"

#include <pthread.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

namespace moe {

struct IoCounters {
    uint64_t reads = 0;
    uint64_t read_bytes = 0;
    double io_ms = 0;  // wall time with at least one request not yet served
};

class IoPool;

// A set of reads that somebody waits for. Its destructor waits too: the lanes write into memory that the
// owner of the batch is about to reuse.
class ReadBatch {
public:
    explicit ReadBatch(IoPool & pool) : pool_(pool) {}
    ~ReadBatch();
    ReadBatch(const ReadBatch &) = delete;
    ReadBatch & operator=(const ReadBatch &) = delete;

    void submit(const std::vector<ReadRequest> & requests);

    // Until all submitted reads have ended. Throws the first failure as Error(io).
    void wait();

private:
    friend class IoPool;
    IoPool & pool_;
    // Guarded by the pool's mutex.
    uint64_t pending_ = 0;
    bool failed_ = false;
    std::string failure_;
};

class IoPool {
public:
    // A lane runs pread and nothing else, so a small stack will do; the default of 8 MiB per thread counts
    // in full against an RLIMIT_DATA budget.
    static constexpr uint64_t kStackBytes = 128 * 1024;
    static constexpr int kMaxLanes = 16;

    // `files` must outlive the pool. 1 to kMaxLanes lanes.
    IoPool(const ShardFiles & files, int n_lanes);
    ~IoPool();
    IoPool(const IoPool &) = delete;
    IoPool & operator=(const IoPool &) = delete;

    IoCounters counters() const;

private:
    friend class ReadBatch;
    struct Job {
        ReadRequest request;
        ReadBatch * batch = nullptr;
    };

    void submit(const std::vector<ReadRequest> & requests, ReadBatch & batch);
    void wait(ReadBatch & batch);
    void run_lane();
    void stop();

    const ShardFiles & files_;
    std::vector<pthread_t> lanes_;
    mutable std::mutex mutex_;
    std::condition_variable work_;
    std::condition_variable done_;
    // Guarded by mutex_.
    std::deque<Job> queue_;
    uint64_t unserved_ = 0;
    int64_t busy_since_ns_ = 0;
    IoCounters counters_;
    bool stopping_ = false;
};

}  // namespace moe
