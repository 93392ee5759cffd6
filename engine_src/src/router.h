// A MoE layer's routing rule, read off llama.cpp's graph, and applied to any input: what a predictor does that runs
// a layer's router on the input of an earlier one.
//
// The rule is evaluated with ggml's own operators in the order of the model's graph, so that for the layer's own
// input it selects the very experts, in the very order, that a decode of one token selects: ties, underflow in the
// softmax and the rounding of the kernel included. A control on zero staleness is therefore exact, not approximate.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace moe {

// logits = matrix x input (+ logit_bias); scores = gate(logits) (+ selection_bias); with groups, only the experts of
// the n_groups_used groups with the largest sum of their two best scores remain; the k largest scores win.
// All but `input` is model weights or a constant and stays valid as long as the model.
struct RouterRule {
    enum class Gate { none, softmax, sigmoid, sqrt_softplus };

    const ggml_tensor * matrix = nullptr;          // [n_embd, n_expert], of any type that ggml can multiply
    const ggml_tensor * logit_bias = nullptr;      // F32 [n_expert] or null
    const ggml_tensor * selection_bias = nullptr;  // F32 [n_expert] or null
    Gate gate = Gate::none;
    uint32_t n_groups = 1;  // 1: selection is not limited to groups
    uint32_t n_groups_used = 1;
    std::array<int32_t, GGML_MAX_OP_PARAMS / sizeof(int32_t)> matmul_params{};  // precision hints of the product

    // F32 [n_embd, n_tokens]: the router's input in the graph that was read, gone with that graph. Its memory may be
    // another tensor's as soon as the logits are computed (gemma4: nothing else uses it), hence before the argsort.
    const ggml_tensor * input = nullptr;

    uint32_t n_embd() const { return static_cast<uint32_t>(matrix->ne[0]); }
    uint32_t n_expert() const { return static_cast<uint32_t>(matrix->ne[1]); }
};

// From a layer's `ffn_moe_argsort` node; nothing is executed. Empty, and the reason in `why_not`, when the graph
// selects experts in a way that a RouterRule cannot express.
std::optional<RouterRule> read_router_rule(const ggml_tensor * argsort, std::string & why_not);

struct RankedExperts {
    std::vector<int32_t> experts;  // best first
    std::vector<float> weights;    // softmax over the logits of these experts: sums to 1
};

// Owns its scratch and a single-threaded CPU backend: one per thread.
class Ranker {
public:
    Ranker();  // Throws Error(memory)

    // The k experts that `rule` gives `input` (n_embd floats). Throws Error(other) for k outside 1 .. n_expert and
    // when the backend fails. `input` must be finite, as for the model itself: ggml sorts without regard to NaN.
    void rank(const RouterRule & rule, const float * input, uint32_t k, RankedExperts & out);

private:
    void reserve(uint32_t n_expert);
    ggml_tensor * leaf(const ggml_tensor * weights);
    ggml_tensor * select_groups(ggml_tensor * scores, const RouterRule & rule);

    struct ContextDeleter {
        void operator()(ggml_context * ctx) const { ggml_free(ctx); }
    };
    struct BackendDeleter {
        void operator()(ggml_backend_t backend) const { ggml_backend_free(backend); }
    };
    std::unique_ptr<ggml_context, ContextDeleter> ctx_;
    std::unique_ptr<ggml_backend, BackendDeleter> cpu_;
    uint32_t reserved_experts_ = 0;
};

}  // namespace moe
