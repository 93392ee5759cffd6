// Runs routers on given inputs, off the compute threads.
#pragma once

#include "router.h"

#include <pthread.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace moe {

// Asked for by one thread; results are fetched by the same one.
class RankingThread {
public:
    // The thread evaluates small graphs; its stack counts in full against an RLIMIT_DATA budget.
    static constexpr uint64_t kStackBytes = 512 * 1024;

    // Results are kept in `n_places` places, each holding the last ranking made for it. Throws Error(other).
    explicit RankingThread(size_t n_places);
    ~RankingThread();
    RankingThread(const RankingThread &) = delete;
    RankingThread & operator=(const RankingThread &) = delete;

    struct Task {
        RouterRule rule;
        size_t place = 0;
    };

    // Ranks `input` by each of the rules, in this order. The input is copied.
    void submit(const float * input, uint32_t n_embd, uint32_t k, const std::vector<Task> & tasks);

    // What the last submission for this place came to: nullptr when there was none since the place was last emptied, or
    // it is not ready and `wait` is false. Valid until the next submission for the place. Throws what the ranking threw.
    const RankedExperts * fetch(size_t place, bool wait);

    // Forgets the result of a place, if any; a ranking under way for it goes unheard.
    void empty(size_t place);

private:
    enum class State : uint8_t { empty, waiting, ready };
    struct Place {
        State state = State::empty;
        uint64_t serial = 0;  // of the submission it waits for or holds
        RankedExperts ranked;
    };
    struct Job {
        std::vector<float> input;
        uint32_t k = 0;
        std::vector<Task> tasks;
        std::vector<uint64_t> serials;
    };

    void run();

    pthread_t thread_{};
    std::mutex mutex_;
    std::condition_variable work_;
    std::condition_variable done_;
    // Guarded by mutex_.
    std::deque<Job> jobs_;
    std::vector<Place> places_;
    std::optional<std::string> failure_;
    uint64_t serial_ = 0;
    bool stopping_ = false;
};

}  // namespace moe
