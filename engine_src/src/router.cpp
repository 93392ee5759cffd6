#include "router.h"

#include "error.h"

#include "ggml-cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace moe {

namespace {

// The longest rule (both biases, sqrt(softplus), groups) makes 24 tensors, of which at most 12 own n_expert floats.
constexpr size_t kTensors = 32;
constexpr size_t kGraphNodes = 32;
constexpr size_t kExpertRows = 16;

constexpr float kExcluded = -std::numeric_limits<float>::infinity();

bool is_op(const ggml_tensor * t, ggml_op op) { return t != nullptr && t->op == op; }

bool is_unary(const ggml_tensor * t, ggml_unary_op op) { return is_op(t, GGML_OP_UNARY) && ggml_get_unary_op(t) == op; }

bool is_descending_argsort(const ggml_tensor * t) {
    return is_op(t, GGML_OP_ARGSORT) && t->op_params[0] == GGML_SORT_ORDER_DESC;
}

bool is_weight(const ggml_tensor * t) { return is_op(t, GGML_OP_NONE) && (t->flags & GGML_TENSOR_FLAG_INPUT) == 0; }

bool is_bias(const ggml_tensor * t, int64_t n_expert) {
    return is_weight(t) && t->type == GGML_TYPE_F32 && t->ne[0] == n_expert && ggml_nelements(t) == n_expert &&
           ggml_is_contiguous(t);
}

float float_param(const ggml_tensor * t, size_t index) {
    float value = 0;
    std::memcpy(&value, &t->op_params[index], sizeof(value));
    return value;
}

// Without a mask, sinks, scale or position bias.
bool is_plain_softmax(const ggml_tensor * t) {
    return is_op(t, GGML_OP_SOFT_MAX) && t->src[1] == nullptr && t->src[2] == nullptr && float_param(t, 0) == 1.0f &&
           float_param(t, 1) == 0.0f;
}

const ggml_tensor * behind_reshapes(const ggml_tensor * t) {
    while (is_op(t, GGML_OP_RESHAPE)) {
        t = t->src[0];
    }
    return t;
}

// The argsort of which `t` is the first columns.
const ggml_tensor * top_of(const ggml_tensor * t) {
    return is_op(t, GGML_OP_VIEW) && t->view_offs == 0 && is_descending_argsort(t->src[0]) ? t->src[0] : nullptr;
}

std::string described(const ggml_tensor * t) {
    return t == nullptr ? "nothing" : std::string(ggml_op_desc(t)) + " '" + t->name + "'";
}

// `masked` keeps the scores of the best groups and excludes all others. Returns the scores before that, or null.
const ggml_tensor * read_groups(const ggml_tensor * masked, RouterRule & rule) {
    const ggml_tensor * kept = masked->src[0];
    const ggml_tensor * best_groups = masked->src[1];
    const ggml_tensor * blank = masked->src[2];
    if (!is_op(kept, GGML_OP_GET_ROWS) || kept->src[1] != best_groups || !is_op(blank, GGML_OP_FILL) ||
        float_param(blank, 0) != kExcluded) {
        return nullptr;
    }
    const ggml_tensor * grouped = kept->src[0];  // [experts of a group, groups, tokens]
    const ggml_tensor * group_order = top_of(best_groups);
    if (blank->src[0] != grouped || !is_op(grouped, GGML_OP_RESHAPE) || group_order == nullptr) {
        return nullptr;
    }
    const ggml_tensor * sums = behind_reshapes(group_order->src[0]);
    const ggml_tensor * best_two = is_op(sums, GGML_OP_SUM_ROWS) ? behind_reshapes(sums->src[0]) : nullptr;
    if (!is_op(best_two, GGML_OP_GET_ROWS)) {
        return nullptr;
    }
    const ggml_tensor * order = top_of(best_two->src[1]);
    if (order == nullptr || order->src[0] != grouped || best_two->src[1]->ne[0] != 2 ||
        behind_reshapes(best_two->src[0]) != behind_reshapes(grouped)) {
        return nullptr;
    }
    rule.n_groups = static_cast<uint32_t>(grouped->ne[1]);
    rule.n_groups_used = static_cast<uint32_t>(best_groups->ne[0]);
    return behind_reshapes(grouped);
}

// Takes the gate off `scores`; unchanged when there is none.
const ggml_tensor * read_gate(const ggml_tensor * scores, RouterRule::Gate & gate) {
    if (is_plain_softmax(scores)) {
        gate = RouterRule::Gate::softmax;
        return scores->src[0];
    }
    if (is_unary(scores, GGML_UNARY_OP_SIGMOID)) {
        gate = RouterRule::Gate::sigmoid;
        return scores->src[0];
    }
    if (is_op(scores, GGML_OP_SQRT) && is_unary(scores->src[0], GGML_UNARY_OP_SOFTPLUS)) {
        gate = RouterRule::Gate::sqrt_softplus;
        return scores->src[0]->src[0];
    }
    return scores;
}

// A bias right on the product is one of the logits unless llama.cpp calls it one of the scores: without a gate the
// graph alone does not tell.
bool is_selection_bias(const ggml_tensor * add) {
    return !is_op(add->src[0], GGML_OP_MUL_MAT) || std::strncmp(add->name, "ffn_moe_probs_biased", 20) == 0;
}

ggml_tensor * gated(ggml_context * ctx, ggml_tensor * logits, RouterRule::Gate gate) {
    switch (gate) {
        case RouterRule::Gate::none: return logits;
        case RouterRule::Gate::softmax: return ggml_soft_max(ctx, logits);
        case RouterRule::Gate::sigmoid: return ggml_sigmoid(ctx, logits);
        case RouterRule::Gate::sqrt_softplus: return ggml_sqrt(ctx, ggml_softplus(ctx, logits));
    }
    return logits;
}

void softmax_of_ranked(const float * logits, RankedExperts & ranked) {
    float largest = kExcluded;
    for (const int32_t expert : ranked.experts) {
        largest = std::max(largest, logits[expert]);
    }
    double sum = 0;
    for (size_t i = 0; i < ranked.experts.size(); ++i) {
        ranked.weights[i] = std::exp(logits[ranked.experts[i]] - largest);
        sum += static_cast<double>(ranked.weights[i]);
    }
    for (float & weight : ranked.weights) {
        weight = static_cast<float>(static_cast<double>(weight) / sum);
    }
}

}  // namespace

std::optional<RouterRule> read_router_rule(const ggml_tensor * argsort, std::string & why_not) {
    const auto refuse = [&](const std::string & reason) {
        why_not = reason;
        return std::nullopt;
    };
    if (!is_descending_argsort(argsort)) {
        return refuse(described(argsort) + " is not a descending argsort");
    }

    RouterRule rule;
    const ggml_tensor * t = behind_reshapes(argsort->src[0]);
    if (is_op(t, GGML_OP_SET_ROWS)) {
        const ggml_tensor * masked = t;
        t = read_groups(masked, rule);
        if (t == nullptr) {
            return refuse(described(masked) + " masks the scores in an unknown way");
        }
    }
    if (is_op(t, GGML_OP_ADD) && is_selection_bias(t)) {
        rule.selection_bias = t->src[1];
        t = t->src[0];
    }
    t = read_gate(t, rule.gate);
    if (is_op(t, GGML_OP_ADD)) {
        rule.logit_bias = t->src[1];
        t = t->src[0];
    }
    if (!is_op(t, GGML_OP_MUL_MAT)) {
        return refuse("the scores come from " + described(t) + ", not from the product of a router matrix");
    }

    rule.matrix = t->src[0];
    rule.input = t->src[1];
    std::copy(std::begin(t->op_params), std::end(t->op_params), rule.matmul_params.begin());
    if (!is_weight(rule.matrix) || !ggml_is_matrix(rule.matrix)) {
        return refuse("the router matrix is " + described(rule.matrix) + ", not a weight");
    }
    if (rule.input->type != GGML_TYPE_F32 || rule.input->nb[0] != sizeof(float) || !ggml_is_matrix(rule.input)) {
        return refuse("the router's input " + described(rule.input) + " is not float32 rows");
    }
    for (const ggml_tensor * bias : {rule.logit_bias, rule.selection_bias}) {
        if (bias != nullptr && !is_bias(bias, rule.matrix->ne[1])) {
            return refuse("the bias " + described(bias) + " is not one float32 weight per expert");
        }
    }
    return rule;
}

Ranker::Ranker() : cpu_(ggml_backend_cpu_init()) {
    if (!cpu_) {
        throw Error(ExitCode::memory, "cannot create a CPU backend for the router prediction");
    }
    ggml_backend_cpu_set_n_threads(cpu_.get(), 1);
}

// Bits do not depend on the number of threads: ggml cuts a product of one column by rows, and its kernels for
// several columns (llamafile, tiled, two rows at once) take the same decision here because it is one column too.
void Ranker::rank(const RouterRule & rule, const float * input, uint32_t k, RankedExperts & out) {
    if (k < 1 || k > rule.n_expert()) {
        throw Error(ExitCode::other, "cannot rank " + std::to_string(k) + " of " + std::to_string(rule.n_expert()) +
                                         " experts");
    }
    reserve(rule.n_expert());
    ggml_context * ctx = ctx_.get();

    ggml_set_no_alloc(ctx, true);
    ggml_tensor * column = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, rule.n_embd());
    column->data = const_cast<float *>(input);  // an operand: only read
    ggml_tensor * matrix = leaf(rule.matrix);
    ggml_tensor * logit_bias = leaf(rule.logit_bias);
    ggml_tensor * selection_bias = leaf(rule.selection_bias);
    ggml_set_no_alloc(ctx, false);

    ggml_tensor * logits = ggml_mul_mat(ctx, matrix, column);
    std::copy(rule.matmul_params.begin(), rule.matmul_params.end(), std::begin(logits->op_params));
    if (logit_bias != nullptr) {
        logits = ggml_add(ctx, logits, logit_bias);
    }
    ggml_tensor * scores = gated(ctx, logits, rule.gate);
    if (selection_bias != nullptr) {
        scores = ggml_add(ctx, scores, selection_bias);
    }
    if (rule.n_groups > 1) {
        scores = select_groups(scores, rule);
    }
    ggml_tensor * order = ggml_argsort(ctx, scores, GGML_SORT_ORDER_DESC);

    ggml_cgraph * graph = ggml_new_graph_custom(ctx, kGraphNodes, false);
    ggml_build_forward_expand(graph, order);
    const ggml_status status = ggml_backend_graph_compute(cpu_.get(), graph);
    if (status != GGML_STATUS_SUCCESS) {
        throw Error(ExitCode::other,
                    std::string("router prediction: the CPU backend failed: ") + ggml_status_to_string(status));
    }

    const auto * best = static_cast<const int32_t *>(order->data);
    out.experts.assign(best, best + k);
    out.weights.resize(k);
    softmax_of_ranked(static_cast<const float *>(logits->data), out);
}

// Scores of the experts outside the best groups become -inf.
ggml_tensor * Ranker::select_groups(ggml_tensor * scores, const RouterRule & rule) {
    ggml_context * ctx = ctx_.get();
    const int64_t n_groups = rule.n_groups;
    const int64_t group_size = rule.n_expert() / n_groups;
    ggml_tensor * grouped = ggml_reshape_2d(ctx, scores, group_size, n_groups);
    ggml_tensor * single = ggml_reshape_3d(ctx, scores, 1, group_size, n_groups);
    ggml_tensor * best_two = ggml_get_rows(ctx, single, ggml_argsort_top_k(ctx, grouped, 2));
    ggml_tensor * sums = ggml_sum_rows(ctx, ggml_reshape_2d(ctx, best_two, 2, n_groups));
    ggml_tensor * best_groups =
        ggml_argsort_top_k(ctx, ggml_reshape_1d(ctx, sums, n_groups), static_cast<int>(rule.n_groups_used));
    ggml_tensor * kept = ggml_get_rows(ctx, grouped, best_groups);
    ggml_tensor * masked = ggml_set_rows(ctx, ggml_fill(ctx, grouped, kExcluded), kept, best_groups);
    return ggml_reshape_1d(ctx, masked, rule.n_expert());
}

// An empty context with room for one ranking.
void Ranker::reserve(uint32_t n_expert) {
    if (ctx_ && n_expert <= reserved_experts_) {
        ggml_reset(ctx_.get());
        return;
    }
    ggml_init_params params{};
    params.mem_size = kTensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(kGraphNodes, false) +
                      kExpertRows * GGML_PAD(n_expert * sizeof(float), GGML_MEM_ALIGN);
    ctx_.reset(ggml_init(params));
    if (!ctx_) {
        throw Error(ExitCode::memory, "cannot create a ggml context for the router prediction");
    }
    reserved_experts_ = n_expert;
}

// A tensor of ours with the bytes of the model's: building a graph writes to its tensors, and the model's are in
// use by the thread that builds the next real graph. Buffer and extra go along, they carry a repacked layout.
ggml_tensor * Ranker::leaf(const ggml_tensor * weights) {
    if (weights == nullptr) {
        return nullptr;
    }
    ggml_tensor * t = ggml_dup_tensor(ctx_.get(), weights);
    std::copy(std::begin(weights->nb), std::end(weights->nb), std::begin(t->nb));
    t->data = weights->data;
    t->buffer = weights->buffer;
    t->extra = weights->extra;
    return t;
}

}  // namespace moe
