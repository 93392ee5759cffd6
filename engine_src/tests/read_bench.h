// What the tests of the read lanes share: files, windows, and an observer that can hold a lane.
#pragma once

#include "aligned_memory.h"
#include "error.h"
#include "io_pool.h"
#include "shard_files.h"

#include "check.h"
#include "pattern_file.h"
#include "temp_dir.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <vector>

constexpr uint64_t kFileBytes = 300'001;
constexpr uint64_t kWindowBytes = 4 * moe::kIoBlock;
constexpr std::byte kUntouched{0xA5};

// An observer that remembers the reads in the order in which they come, and holds each in its lane until it is let
// pass. A read that is held is still in flight.
class Gate {
public:
    void operator()(const moe::IoEvent & event) {
        std::unique_lock<std::mutex> lock(mutex_);
        events_.push_back(event);
        const size_t number = events_.size();
        changed_.notify_all();
        changed_.wait(lock, [&] { return number <= allowed_; });
        ++passed_;
    }
    void await_arrivals(size_t n) {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return events_.size() >= n; });
    }
    void let_pass(size_t n) {
        const std::lock_guard<std::mutex> lock(mutex_);
        allowed_ += n;
        changed_.notify_all();
    }
    void close() {  // for those yet to come
        const std::lock_guard<std::mutex> lock(mutex_);
        allowed_ = events_.size();
    }
    void open() {
        const std::lock_guard<std::mutex> lock(mutex_);
        allowed_ = std::numeric_limits<size_t>::max();
        changed_.notify_all();
    }
    size_t passed() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return passed_;
    }
    std::vector<moe::IoEvent> events() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return events_;
    }
    std::vector<uint32_t> experts() {
        std::vector<uint32_t> experts;
        for (const moe::IoEvent & event : events()) {
            experts.push_back(event.request.tag.expert);
        }
        return experts;
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<moe::IoEvent> events_;
    size_t allowed_ = 0;
    size_t passed_ = 0;
};

// A file of known bytes (shard 0), one that has lost its end since it was opened (shard 1), and a window for each of a
// few requests, which are told apart by the expert of their tag.
class Bench {
public:
    explicit Bench(size_t n_windows, bool direct = true)
        : bytes_(pattern(kFileBytes)), files_(make_files(direct)), windows_(n_windows * kWindowBytes) {
        CHECK(truncate(dir_.file("short").c_str(), 0) == 0);
        std::fill_n(windows_.data(), windows_.size(), kUntouched);
    }
    const moe::ShardFiles & files() const { return files_; }
    std::byte * window(size_t i) const { return windows_.data() + i * kWindowBytes; }

    moe::ReadRequest request(uint32_t i) const { return {0, 1000 + 5000ULL * i, 7000, window(i), i % 3, {0, i, 0}}; }
    moe::ReadRequest doomed(uint32_t i) const { return {1, 1000, 7000, window(i), 0, {0, i, 0}}; }
    std::vector<moe::ReadRequest> requests(uint32_t first, uint32_t last) const {
        std::vector<moe::ReadRequest> requests;
        for (uint32_t i = first; i < last; ++i) {
            requests.push_back(request(i));
        }
        return requests;
    }
    bool arrived(const moe::ReadRequest & r) const {
        return std::memcmp(r.window + r.shift, bytes_.data() + r.offset, r.size) == 0;
    }
    bool arrived(uint32_t i) const { return arrived(request(i)); }
    bool untouched(size_t i) const {
        return std::all_of(window(i), window(i + 1), [](std::byte b) { return b == kUntouched; });
    }
    void reset(size_t i) { std::fill_n(window(i), kWindowBytes, kUntouched); }

private:
    moe::ShardFiles make_files(bool direct) const {
        write_file(dir_.file("whole"), bytes_);
        write_file(dir_.file("short"), bytes_);
        return moe::ShardFiles({dir_.file("whole"), dir_.file("short")}, direct);
    }

    const TempDir dir_;
    const std::vector<char> bytes_;
    const moe::ShardFiles files_;
    moe::AlignedMemory windows_;
};

inline bool throws_io(const std::function<void()> & body) {
    try {
        body();
    } catch (const moe::Error & e) {
        return e.code() == moe::ExitCode::io;
    }
    return false;
}
