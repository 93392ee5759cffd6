// The rule read off a graph selects what the graph itself selects: for every gate, bias, type of matrix and for
// groups, ties included. The graphs are small ones with the operators that llama.cpp uses; test_router_control has
// its own.
#include "router.h"

#include "error.h"

#include "check.h"

#include "ggml-cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using moe::RankedExperts;
using moe::Ranker;
using moe::RouterRule;
using moe::read_router_rule;
using Gate = RouterRule::Gate;

struct Shape {
    ggml_type type = GGML_TYPE_F32;
    Gate gate = Gate::softmax;
    bool logit_bias = false;
    bool selection_bias = false;
    int64_t n_groups = 1;
    int64_t n_groups_used = 1;
    int64_t n_embd = 96;
    int64_t n_expert = 64;
    int64_t n_tokens = 1;

    std::string name() const {
        return std::string(ggml_type_name(type)) + " gate " + std::to_string(static_cast<int>(gate)) +
               (logit_bias ? " logit-bias" : "") + (selection_bias ? " selection-bias" : "") + " groups " +
               std::to_string(n_groups) + "/" + std::to_string(n_groups_used);
    }
};

// A router as a model has it: weights, and the graph from the input to the argsort.
class Router {
public:
    Router(const Shape & shape, uint32_t seed) : shape_(shape), random_(seed), cpu_(ggml_backend_cpu_init()) {
        ggml_backend_cpu_set_n_threads(cpu_.get(), 1);
        ggml_init_params params{};
        params.mem_size = size_t{4} << 20;
        ctx_.reset(ggml_init(params));
        make_weights();
        build();
    }

    ggml_context * ctx() { return ctx_.get(); }
    ggml_tensor * input() { return input_; }
    ggml_tensor * matrix() { return matrix_; }
    ggml_tensor * logits() { return logits_; }
    ggml_tensor * scores() { return scores_; }
    ggml_tensor * argsort() { return argsort_; }
    float * input_data() { return static_cast<float *>(input_->data); }
    const float * score_data() const { return static_cast<const float *>(scores_->data); }
    const float * logit_data() const { return static_cast<const float *>(logits_->data); }

    void randomise_input(float scale) {
        std::normal_distribution<float> normal(0, scale);
        std::generate_n(input_data(), ggml_nelements(input_), [&] { return normal(random_); });
    }

    void use_threads(int n) { ggml_backend_cpu_set_n_threads(cpu_.get(), n); }

    // The graph's own order of all experts, for the first token.
    std::vector<int32_t> compute() {
        ggml_backend_graph_compute(cpu_.get(), graph_);
        const auto * ids = static_cast<const int32_t *>(argsort_->data);
        return {ids, ids + shape_.n_expert};
    }

private:
    ggml_tensor * random_bias(float scale) {
        ggml_tensor * bias = ggml_new_tensor_1d(ctx(), GGML_TYPE_F32, shape_.n_expert);
        std::normal_distribution<float> normal(0, scale);
        std::generate_n(static_cast<float *>(bias->data), shape_.n_expert, [&] { return normal(random_); });
        return bias;
    }

    // Some experts are twins, so that scores tie.
    void make_weights() {
        std::normal_distribution<float> normal(0, 0.2f);
        std::vector<float> rows(static_cast<size_t>(shape_.n_embd * shape_.n_expert));
        std::generate(rows.begin(), rows.end(), [&] { return normal(random_); });
        for (const int64_t twin : {7, 20, 33}) {
            std::copy_n(rows.begin() + 3 * shape_.n_embd, shape_.n_embd, rows.begin() + twin * shape_.n_embd);
        }
        matrix_ = ggml_new_tensor_2d(ctx(), shape_.type, shape_.n_embd, shape_.n_expert);
        ggml_set_name(matrix_, "blk.0.ffn_gate_inp.weight");
        ggml_quantize_chunk(shape_.type, rows.data(), matrix_->data, 0, shape_.n_expert, shape_.n_embd, nullptr);
    }

    void build() {
        input_ = ggml_new_tensor_2d(ctx(), GGML_TYPE_F32, shape_.n_embd, shape_.n_tokens);
        logits_ = ggml_mul_mat(ctx(), matrix_, input_);
        if (shape_.logit_bias) {
            logits_ = ggml_add(ctx(), logits_, random_bias(0.3f));
        }
        scores_ = logits_;
        switch (shape_.gate) {
            case Gate::none: break;
            case Gate::softmax: scores_ = ggml_soft_max(ctx(), logits_); break;
            case Gate::sigmoid: scores_ = ggml_sigmoid(ctx(), logits_); break;
            case Gate::sqrt_softplus: scores_ = ggml_sqrt(ctx(), ggml_softplus(ctx(), logits_)); break;
        }
        if (shape_.selection_bias) {
            scores_ = ggml_add(ctx(), scores_, random_bias(0.3f));
            ggml_set_name(scores_, "ffn_moe_probs_biased-0");
        }
        if (shape_.n_groups > 1) {
            scores_ = masked(scores_, 2);
        }
        argsort_ = ggml_argsort(ctx(), scores_, GGML_SORT_ORDER_DESC);
        ggml_set_name(argsort_, "ffn_moe_argsort-0");
        graph_ = ggml_new_graph(ctx());
        ggml_build_forward_expand(graph_, argsort_);
    }

public:
    // Group masking for several tokens, by the sum of each group's best `n_best`.
    ggml_tensor * masked(ggml_tensor * scores, int n_best) {
        const int64_t n_tokens = shape_.n_tokens;
        ggml_tensor * groups =
            ggml_reshape_3d(ctx(), scores, shape_.n_expert / shape_.n_groups, shape_.n_groups, n_tokens);
        ggml_tensor * one_by_one = ggml_reshape_4d(ctx(), groups, 1, groups->ne[0], groups->ne[1], n_tokens);
        ggml_tensor * best = ggml_get_rows(ctx(), one_by_one, ggml_argsort_top_k(ctx(), groups, n_best));
        ggml_tensor * sums = ggml_sum_rows(ctx(), ggml_reshape_3d(ctx(), best, n_best, shape_.n_groups, n_tokens));
        ggml_tensor * used = ggml_argsort_top_k(ctx(), ggml_reshape_2d(ctx(), sums, shape_.n_groups, n_tokens),
                                                static_cast<int>(shape_.n_groups_used));
        ggml_tensor * kept = ggml_get_rows(ctx(), groups, used);
        ggml_tensor * blank = ggml_fill(ctx(), groups, -std::numeric_limits<float>::infinity());
        return ggml_reshape_2d(ctx(), ggml_set_rows(ctx(), blank, kept, used), shape_.n_expert, n_tokens);
    }

private:
    struct ContextDeleter {
        void operator()(ggml_context * ctx) const { ggml_free(ctx); }
    };
    struct BackendDeleter {
        void operator()(ggml_backend_t backend) const { ggml_backend_free(backend); }
    };

    Shape shape_;
    std::mt19937 random_;
    std::unique_ptr<ggml_backend, BackendDeleter> cpu_;
    std::unique_ptr<ggml_context, ContextDeleter> ctx_;
    ggml_tensor * input_ = nullptr;
    ggml_tensor * matrix_ = nullptr;
    ggml_tensor * logits_ = nullptr;
    ggml_tensor * scores_ = nullptr;
    ggml_tensor * argsort_ = nullptr;
    ggml_cgraph * graph_ = nullptr;
};

std::vector<Shape> all_shapes() {
    std::vector<Shape> shapes;
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0}) {
        for (const Gate gate : {Gate::none, Gate::softmax, Gate::sigmoid, Gate::sqrt_softplus}) {
            for (const int biases : {0, 1, 2, 3}) {
                for (const int64_t n_groups : {1, 8}) {
                    Shape shape;
                    shape.type = type;
                    shape.gate = gate;
                    shape.logit_bias = (biases & 1) != 0;
                    shape.selection_bias = (biases & 2) != 0;
                    shape.n_groups = n_groups;
                    shape.n_groups_used = n_groups > 1 ? 4 : 1;
                    shapes.push_back(shape);
                }
            }
        }
    }
    return shapes;
}

void selects_what_the_graph_selects() {
    constexpr int kInputs = 200;
    constexpr uint32_t kTop = 6;
    Ranker ranker;
    RankedExperts ranked;
    uint32_t seed = 1;
    uint64_t n_ties = 0;
    for (const Shape & shape : all_shapes()) {
        Router router(shape, seed++);
        std::string why_not;
        const std::optional<RouterRule> rule = read_router_rule(router.argsort(), why_not);
        const auto expect = [&](bool ok, const std::string & what) {
            check::that(ok, (shape.name() + ": " + what).c_str(), __FILE__, __LINE__);
        };
        expect(rule.has_value(), "no rule: " + why_not);
        if (!rule) {
            continue;
        }
        int n_different = 0;
        double worst_weight = 0;
        for (int i = 0; i < kInputs; ++i) {
            router.randomise_input(i % 4 == 0 ? 40.0f : 1.0f);  // large: the softmax underflows, the sigmoid saturates
            std::vector<int32_t> chosen = router.compute();
            chosen.resize(kTop);
            ranker.rank(*rule, router.input_data(), kTop, ranked);
            n_different += ranked.experts != chosen ? 1 : 0;
            for (size_t a = 1; a < kTop; ++a) {
                n_ties += router.score_data()[chosen[a]] == router.score_data()[chosen[a - 1]] ? 1 : 0;
            }

            double sum = 0;
            for (const int32_t expert : chosen) {
                sum += std::exp(static_cast<double>(router.logit_data()[expert] - router.logit_data()[chosen[0]]));
            }
            for (size_t a = 0; a < kTop; ++a) {
                const auto above = static_cast<double>(router.logit_data()[chosen[a]] - router.logit_data()[chosen[0]]);
                const double weight = std::exp(above) / sum;
                worst_weight = std::max(worst_weight, std::abs(weight - static_cast<double>(ranked.weights[a])));
            }
        }
        expect(n_different == 0, std::to_string(n_different) + " of " + std::to_string(kInputs) + " differ");
        expect(worst_weight < 1e-5, "weights are off by " + std::to_string(worst_weight));
    }
    CHECK(n_ties > 100);
}

void threads_of_the_model_do_not_matter() {
    Shape shape;
    shape.type = GGML_TYPE_BF16;
    shape.n_expert = 61;
    Router router(shape, 3);
    router.use_threads(2);
    std::string why_not;
    const std::optional<RouterRule> rule = read_router_rule(router.argsort(), why_not);
    Ranker ranker;
    RankedExperts ranked;
    for (int i = 0; i < 20; ++i) {
        router.randomise_input(1);
        ranker.rank(*rule, router.input_data(), 61, ranked);
        CHECK(ranked.experts == router.compute());
    }
}

void rule_names_its_parts() {
    Shape shape;
    shape.gate = Gate::sigmoid;
    shape.logit_bias = true;
    shape.selection_bias = true;
    shape.n_groups = 8;
    shape.n_groups_used = 4;
    for (const int64_t n_tokens : {1, 5}) {  // a prompt's graph gives the same rule
        shape.n_tokens = n_tokens;
        Router router(shape, 1);
        std::string why_not;
        const std::optional<RouterRule> rule = read_router_rule(router.argsort(), why_not);
        CHECK(rule.has_value());
        CHECK(rule && rule->matrix == router.matrix());
        CHECK(rule && rule->input == router.input());
        CHECK(rule && rule->logit_bias == router.logits()->src[1]);
        CHECK(rule && rule->selection_bias != nullptr && rule->selection_bias != rule->logit_bias);
        CHECK(rule && rule->gate == Gate::sigmoid);
        CHECK(rule && rule->n_groups == 8 && rule->n_groups_used == 4);
        CHECK(rule && rule->n_embd() == 96 && rule->n_expert() == 64);
    }
}

// Without a gate a single bias looks the same on both sides; what llama.cpp calls it decides, and with it the weights.
void lone_bias_without_gate_is_told_by_its_name() {
    Shape shape;
    shape.gate = Gate::none;
    std::string why_not;
    shape.logit_bias = true;
    Router logit(shape, 1);
    const std::optional<RouterRule> of_logits = read_router_rule(logit.argsort(), why_not);
    CHECK(of_logits && of_logits->logit_bias != nullptr && of_logits->selection_bias == nullptr);
    shape.logit_bias = false;
    shape.selection_bias = true;
    Router selection(shape, 1);
    const std::optional<RouterRule> of_scores = read_router_rule(selection.argsort(), why_not);
    CHECK(of_scores && of_scores->logit_bias == nullptr && of_scores->selection_bias != nullptr);
}

void precision_hint_goes_along() {
    Router router(Shape{}, 1);
    ggml_prec_set_acc(router.logits(), GGML_PREC_F32);
    std::string why_not;
    const std::optional<RouterRule> rule = read_router_rule(router.argsort(), why_not);
    CHECK(rule && rule->matmul_params[0] == GGML_PREC_F32);
}

void other_graphs_are_refused_with_a_reason() {
    Shape shape;
    shape.n_groups = 8;
    shape.n_groups_used = 4;
    Router router(shape, 1);
    ggml_context * ctx = router.ctx();
    ggml_tensor * logits = router.logits();
    const auto sorted = [&](ggml_tensor * scores) { return ggml_argsort(ctx, scores, GGML_SORT_ORDER_DESC); };

    ggml_tensor * bias_per_token = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 1);
    ggml_set_input(bias_per_token);
    ggml_tensor * half = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, 96, 1);
    ggml_tensor * top_one = router.masked(ggml_soft_max(ctx, logits), 1);
    ggml_tensor * other_fill = router.masked(ggml_soft_max(ctx, logits), 2);
    const float zero = 0;
    std::memcpy(other_fill->src[0]->src[2]->op_params, &zero, sizeof(zero));

    struct Refusal {
        ggml_tensor * argsort;
        const char * reason;
    };
    const std::vector<Refusal> refusals = {
        {logits, "is not a descending argsort"},
        {ggml_argsort(ctx, logits, GGML_SORT_ORDER_ASC), "is not a descending argsort"},
        {sorted(ggml_scale(ctx, logits, 2)), "not from the product of a router matrix"},
        {sorted(ggml_soft_max_ext(ctx, logits, nullptr, 0.5f, 0)), "not from the product of a router matrix"},
        {sorted(ggml_tanh(ctx, logits)), "not from the product of a router matrix"},
        {sorted(router.input()), "not from the product of a router matrix"},
        {sorted(ggml_add(ctx, ggml_sigmoid(ctx, logits), bias_per_token)), "is not one float32 weight per expert"},
        {sorted(ggml_add(ctx, logits, ggml_scale(ctx, logits, 2))), "is not one float32 weight per expert"},
        {sorted(ggml_mul_mat(ctx, ggml_scale(ctx, router.matrix(), 2), router.input())), "not a weight"},
        {sorted(ggml_mul_mat(ctx, router.matrix(), half)), "is not float32 rows"},
        {sorted(top_one), "masks the scores in an unknown way"},
        {sorted(other_fill), "masks the scores in an unknown way"},
    };
    for (const Refusal & refusal : refusals) {
        std::string why_not;
        CHECK(!read_router_rule(refusal.argsort, why_not));
        check::that(why_not.find(refusal.reason) != std::string::npos, (why_not + " / " + refusal.reason).c_str(),
                    __FILE__, __LINE__);
    }
    std::string why_not;
    CHECK(!read_router_rule(nullptr, why_not));
    CHECK(!why_not.empty());
}

void k_outside_the_model_is_refused() {
    Router router(Shape{}, 1);
    router.randomise_input(1);
    std::string why_not;
    const std::optional<RouterRule> rule = read_router_rule(router.argsort(), why_not);
    Ranker ranker;
    RankedExperts ranked;
    for (const uint32_t k : {0U, 65U}) {
        bool thrown = false;
        try {
            ranker.rank(*rule, router.input_data(), k, ranked);
        } catch (const moe::Error &) {
            thrown = true;
        }
        CHECK(thrown);
    }
    ranker.rank(*rule, router.input_data(), 64, ranked);
    CHECK(ranked.experts == router.compute());
}

// Layers of different width share one ranker; the model's tensors stay as they are.
void one_ranker_serves_all_layers() {
    Ranker ranker;
    RankedExperts ranked;
    for (const int64_t n_expert : {40, 512, 64}) {
        Shape shape;
        shape.n_expert = n_expert;
        shape.logit_bias = true;
        Router router(shape, 5);
        router.randomise_input(1);
        std::string why_not;
        const std::optional<RouterRule> rule = read_router_rule(router.argsort(), why_not);
        const ggml_tensor matrix_before = *rule->matrix;
        ranker.rank(*rule, router.input_data(), 8, ranked);
        std::vector<int32_t> chosen = router.compute();
        chosen.resize(8);
        CHECK(ranked.experts == chosen);
        CHECK(std::memcmp(&matrix_before, rule->matrix, sizeof(matrix_before)) == 0);
    }
}

void rankers_of_several_threads_share_a_rule() {
    Shape shape;
    shape.type = GGML_TYPE_F16;
    shape.logit_bias = true;
    Router router(shape, 9);
    router.randomise_input(1);
    std::vector<int32_t> chosen = router.compute();
    chosen.resize(6);
    std::string why_not;
    const std::optional<RouterRule> rule = read_router_rule(router.argsort(), why_not);
    const auto n_different = [&] {
        Ranker ranker;
        RankedExperts ranked;
        int n = 0;
        for (int i = 0; i < 200; ++i) {
            ranker.rank(*rule, router.input_data(), 6, ranked);
            n += ranked.experts != chosen ? 1 : 0;
        }
        return n;
    };
    int of_other = -1;
    std::thread other([&] { of_other = n_different(); });
    CHECK(n_different() == 0);
    other.join();
    CHECK(of_other == 0);
}

}  // namespace

int main() {
    check::run("selects what the graph selects", selects_what_the_graph_selects);
    check::run("threads of the model do not matter", threads_of_the_model_do_not_matter);
    check::run("the rule names its parts, whatever the batch", rule_names_its_parts);
    check::run("a lone bias without a gate is told by its name", lone_bias_without_gate_is_told_by_its_name);
    check::run("the precision hint goes along", precision_hint_goes_along);
    check::run("other graphs are refused with a reason", other_graphs_are_refused_with_a_reason);
    check::run("k outside 1 .. experts is refused", k_outside_the_model_is_refused);
    check::run("one ranker serves layers of any width", one_ranker_serves_all_layers);
    check::run("rankers of several threads share a rule", rankers_of_several_threads_share_a_rule);
    return check::result();
}
