#include "io_pool.h"
#include "shard_files.h"

#include "check.h"
#include "read_bench.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

using namespace moe;

namespace {

// Random operations on a few batches at a time, checked against what the interface promises.
class Stress {
public:
    Stress(int n_lanes, uint32_t seed)
        : bench_(kWindows), gate_(), pool_(bench_.files(), n_lanes, std::ref(gate_)), random_(seed) {
        gate_.open();
        for (size_t i = 0; i < kWindows; ++i) {
            free_.push_back(i);
        }
    }
    // Returns how many requests were waited for and yet never read.
    size_t run(int n_steps) {
        for (int step = 0; step < n_steps; ++step) {
            auto & batch = batches_[below(kBatches)];
            if (!batch) {
                batch = std::make_unique<Tracked>(pool_);
            }
            const size_t choice = below(10);
            const bool may_block = choice == 4 || choice == 5 || choice >= 8;
            if (may_block) {
                gate_.open();
            } else if (below(2) == 0) {
                gate_.close();
            }
            if (choice < 4) {
                submit(*batch);
            } else if (choice < 6) {
                wait_new(*batch);
            } else if (choice < 8) {
                batch->cancelled += batch->reads.cancel();
            } else if (choice == 8) {
                wait(*batch);
            } else {
                retire(batch);
            }
        }
        gate_.open();
        for (auto & batch : batches_) {
            retire(batch);
        }
        check_totals();
        return never_read_.size();
    }

private:
    static constexpr size_t kWindows = 48;
    static constexpr size_t kBatches = 4;

    struct Tracked {
        explicit Tracked(IoPool & pool) : reads(pool) {}
        std::vector<ReadRequest> requests;
        std::set<size_t> returned;
        size_t cancelled = 0;
        ReadBatch reads;
    };

    size_t below(size_t n) { return random_() % n; }

    void submit(Tracked & batch) {
        std::vector<ReadRequest> requests;
        for (size_t n = below(6); n > 0 && !free_.empty(); --n) {
            const size_t window = free_.back();
            free_.pop_back();
            CHECK(bench_.untouched(window));
            const uint64_t size = 1 + below(8000);
            const uint64_t offset = below(kFileBytes - size);
            const uint32_t shard = below(100) == 0 ? 1 : 0;
            requests.push_back({shard, offset, size, bench_.window(window), below(4000), {0, n_tags_++, 0}});
        }
        batch.requests.insert(batch.requests.end(), requests.begin(), requests.end());
        batch.reads.submit(requests, below(2) == 0 ? ReadUrgency::demand : ReadUrgency::speculative);
    }

    bool doomed(const Tracked & batch, size_t first, size_t last) const {
        return std::any_of(batch.requests.begin() + static_cast<std::ptrdiff_t>(first),
                           batch.requests.begin() + static_cast<std::ptrdiff_t>(last),
                           [](const ReadRequest & r) { return r.shard == 1; });
    }

    void wait_new(Tracked & batch) {
        const size_t first = below(batch.requests.size() + 1);
        const size_t last = first + below(batch.requests.size() - first + 1);
        std::vector<size_t> fresh;
        if (throws_io([&] { fresh = batch.reads.wait_new(first, last); })) {
            CHECK(doomed(batch, first, last));
            CHECK(batch.reads.idle());
            return;
        }
        CHECK(std::is_sorted(fresh.begin(), fresh.end()));
        for (const size_t i : fresh) {
            CHECK(i >= first && i < last);
            CHECK(batch.returned.insert(i).second);
            CHECK(batch.reads.ended(i));
            CHECK(bench_.arrived(batch.requests[i]));
        }
    }

    void wait(Tracked & batch) {
        const bool failed = throws_io([&] { batch.reads.wait(); });
        CHECK(batch.reads.idle());
        size_t ended = 0;
        for (size_t i = 0; i < batch.requests.size(); ++i) {
            const ReadRequest & r = batch.requests[i];
            if (batch.reads.ended(i)) {
                ++ended;
                CHECK(r.shard == 0 && bench_.arrived(r));
                ended_.insert(r.tag.expert);
            } else if (r.shard == 0) {
                CHECK(bench_.untouched(static_cast<size_t>(r.window - bench_.window(0)) / kWindowBytes));
                never_read_.insert(r.tag.expert);
            }
        }
        if (!failed) {
            // A doomed request can only have been taken back.
            CHECK(ended + batch.cancelled == batch.requests.size());
        } else {
            CHECK(doomed(batch, 0, batch.requests.size()));
        }
    }

    // The windows are then free for others, and whoever gets one next finds it untouched.
    void retire(std::unique_ptr<Tracked> & batch) {
        if (!batch) {
            return;
        }
        const std::vector<ReadRequest> requests = batch->requests;
        batch.reset();
        for (const ReadRequest & r : requests) {
            const size_t window = static_cast<size_t>(r.window - bench_.window(0)) / kWindowBytes;
            bench_.reset(window);
            free_.insert(free_.begin(), window);
        }
    }

    void check_totals() {
        std::map<uint32_t, int> times_read;
        IoCounters seen;
        for (const IoEvent & event : gate_.events()) {
            ++times_read[event.request.tag.expert];
            seen.reads += 1;
            seen.read_bytes += event.read_bytes;
            seen.speculative_reads += event.speculative ? 1 : 0;
            seen.speculative_read_bytes += event.speculative ? event.read_bytes : 0;
        }
        for (const auto & [tag, n] : times_read) {
            CHECK(n == 1);
            CHECK(never_read_.count(tag) == 0);
        }
        for (const uint32_t tag : ended_) {
            CHECK(times_read.count(tag) == 1);
        }
        const IoCounters counters = pool_.counters();
        CHECK(counters.reads == seen.reads && counters.read_bytes == seen.read_bytes);
        CHECK(counters.speculative_reads == seen.speculative_reads);
        CHECK(counters.speculative_read_bytes == seen.speculative_read_bytes);
        CHECK(counters.speculative_reads > 0 && counters.speculative_reads < counters.reads);
        CHECK(!ended_.empty());
        for (size_t i = 0; i < kWindows; ++i) {
            CHECK(bench_.untouched(i));
        }
    }

    Bench bench_;
    Gate gate_;
    IoPool pool_;
    std::mt19937 random_;
    std::vector<size_t> free_;
    std::unique_ptr<Tracked> batches_[kBatches];
    uint32_t n_tags_ = 0;
    std::set<uint32_t> ended_;
    std::set<uint32_t> never_read_;
};

void random_operations_keep_every_promise() {
    size_t never_read = 0;
    for (const int lanes : {1, 2, 5, 16}) {
        never_read += Stress(lanes, static_cast<uint32_t>(lanes)).run(3000);
    }
    CHECK(never_read > 0);
}

}  // namespace

int main() {
    check::run("random operations keep every promise", random_operations_keep_every_promise);
    return check::result();
}
