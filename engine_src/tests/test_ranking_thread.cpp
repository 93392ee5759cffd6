// Rankings made beside the compute threads.
#include "ranking_thread.h"

#include "check.h"

#include <memory>

using namespace moe;

namespace {

// A router big enough that a ranking takes a while: expert e scores e times the input's sum.
class Matrix {
public:
    Matrix() : data_(kEmbd * kExperts) {
        ggml_init_params params{};
        params.mem_size = 4 * ggml_tensor_overhead();
        params.no_alloc = true;
        ctx_.reset(ggml_init(params));
        rule.gate = RouterRule::Gate::softmax;
        ggml_tensor * t = ggml_new_tensor_2d(ctx_.get(), GGML_TYPE_F32, kEmbd, kExperts);
        for (size_t i = 0; i < data_.size(); ++i) {
            data_[i] = static_cast<float>(i / kEmbd) / (kEmbd * kExperts);
        }
        t->data = data_.data();
        rule.matrix = t;
    }
    static constexpr int64_t kEmbd = 2048;
    static constexpr int64_t kExperts = 256;
    RouterRule rule;

private:
    std::vector<float> data_;
    std::unique_ptr<ggml_context, decltype(&ggml_free)> ctx_{nullptr, ggml_free};
};

const std::vector<float> kInput(Matrix::kEmbd, 1.0F);

void submit(RankingThread & thread, const Matrix & matrix, size_t n) {
    for (size_t place = 0; place < n; ++place) {
        thread.submit(kInput.data(), Matrix::kEmbd, 2, {{matrix.rule, place}});
    }
}

void results_are_those_of_the_last_submission() {
    const Matrix matrix;
    RankingThread thread(2);
    CHECK(thread.fetch(0, true) == nullptr);
    submit(thread, matrix, 2);
    for (size_t place = 0; place < 2; ++place) {
        const RankedExperts * ranked = thread.fetch(place, true);
        CHECK(ranked != nullptr && (ranked->experts == std::vector<int32_t>{255, 254}));
    }
    thread.empty(0);
    CHECK(thread.fetch(0, true) == nullptr);
    CHECK(thread.fetch(1, false) != nullptr);
}

// With rankings still to be made: whoever frees the weights afterwards frees nothing that is looked at.
void ending_it_ends_its_reading_of_weights() {
    for (int round = 0; round < 20; ++round) {
        auto matrix = std::make_unique<Matrix>();
        {
            RankingThread thread(8);
            submit(thread, *matrix, 8);
            thread.empty(7);
        }
        matrix.reset();
    }
}

void a_failure_reaches_whoever_asks() {
    const Matrix matrix;
    RankingThread thread(1);
    thread.submit(kInput.data(), Matrix::kEmbd, Matrix::kExperts + 1, {{matrix.rule, 0}});
    bool thrown = false;
    try {
        thread.fetch(0, true);
    } catch (const std::exception &) {
        thrown = true;
    }
    CHECK(thrown);
    submit(thread, matrix, 1);  // nobody works on it, nobody waits for ever
}

}  // namespace

int main() {
    check::run("results are those of the last submission", results_are_those_of_the_last_submission);
    check::run("ending it ends its reading of weights", ending_it_ends_its_reading_of_weights);
    check::run("a failure reaches whoever asks", a_failure_reaches_whoever_asks);
    return check::result();
}
