#include "ranking_thread.h"

#include "error.h"

#include <cstring>
#include <exception>
#include <utility>

namespace moe {

RankingThread::RankingThread(size_t n_places) : places_(n_places) {
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, kStackBytes);
    const int rc = pthread_create(
        &thread_, &attr,
        [](void * self) -> void * {
            static_cast<RankingThread *>(self)->run();
            return nullptr;
        },
        this);
    pthread_attr_destroy(&attr);
    if (rc != 0) {
        throw Error(ExitCode::other, std::string("cannot start the predictor's thread: ") + std::strerror(rc));
    }
}

RankingThread::~RankingThread() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    work_.notify_all();
    pthread_join(thread_, nullptr);
}

void RankingThread::submit(const float * input, uint32_t n_embd, uint32_t k, const std::vector<Task> & tasks) {
    Job job;
    job.input.assign(input, input + n_embd);
    job.k = k;
    job.tasks = tasks;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (const Task & task : tasks) {
            Place & place = places_[task.place];
            place.state = State::waiting;
            place.serial = ++serial_;
            job.serials.push_back(place.serial);
        }
        jobs_.push_back(std::move(job));
    }
    work_.notify_one();
}

const RankedExperts * RankingThread::fetch(size_t place, bool wait) {
    std::unique_lock<std::mutex> lock(mutex_);
    Place & p = places_[place];
    if (wait) {
        done_.wait(lock, [&] { return p.state != State::waiting || failure_.has_value(); });
    }
    if (failure_) {
        throw Error(ExitCode::other, *failure_);
    }
    return p.state == State::ready ? &p.ranked : nullptr;
}

void RankingThread::empty(size_t place) {
    const std::lock_guard<std::mutex> lock(mutex_);
    places_[place].state = State::empty;
}

void RankingThread::run() {
    std::unique_lock<std::mutex> lock(mutex_);
    std::optional<Ranker> ranker;
    RankedExperts ranked;
    for (;;) {
        work_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
        if (stopping_) {
            return;
        }
        const Job job = std::move(jobs_.front());
        jobs_.pop_front();
        for (size_t i = 0; i < job.tasks.size() && !failure_; ++i) {
            lock.unlock();
            std::optional<std::string> failure;
            try {
                if (!ranker) {
                    ranker.emplace();
                }
                ranker->rank(job.tasks[i].rule, job.input.data(), job.k, ranked);
            } catch (const std::exception & error) {
                failure = error.what();
            }
            lock.lock();
            Place & place = places_[job.tasks[i].place];
            if (failure) {
                failure_ = failure;
            } else if (place.state == State::waiting && place.serial == job.serials[i]) {
                std::swap(place.ranked, ranked);
                place.state = State::ready;
            }
            done_.notify_all();
        }
    }
}

}  // namespace moe
