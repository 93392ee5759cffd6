// The control of a decode by llama.cpp: the rule read off its graphs selects a layer's experts from the layer's own
// input.
#include "router.h"

#include "check.h"
#include "decoding.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

namespace {

using moe::RankedExperts;
using moe::Ranker;
using moe::RouterRule;
using moe::read_router_rule;

// An observer of the graph. The input is copied as soon as the logits are computed: later its memory may be reused.
struct Control {
    Ranker ranker;
    std::vector<float> input;
    int n_routings = 0;
    int n_different = 0;
    std::string why_not;

    static bool on_node(ggml_tensor * node, bool ask, void * self) {
        const bool logits = std::strncmp(node->name, "ffn_moe_logits-", 15) == 0;
        const bool argsort = std::strncmp(node->name, "ffn_moe_argsort-", 16) == 0;
        if (!ask && logits) {
            static_cast<Control *>(self)->keep_input(node->src[1]);
        } else if (!ask && argsort && node->ne[1] == 1) {
            static_cast<Control *>(self)->score(node);
        }
        return !ask || logits || argsort;
    }

    void keep_input(const ggml_tensor * t) {
        const auto * row = static_cast<const float *>(t->data);
        input.assign(row, row + t->ne[0]);
    }

    void score(const ggml_tensor * argsort) {
        constexpr uint32_t kTop = 3;
        const std::optional<RouterRule> rule = read_router_rule(argsort, why_not);
        if (!rule) {
            return;
        }
        RankedExperts ranked;
        ranker.rank(*rule, input.data(), kTop, ranked);
        const auto * chosen = static_cast<const int32_t *>(argsort->data);
        ++n_routings;
        n_different += std::equal(chosen, chosen + kTop, ranked.experts.begin()) ? 0 : 1;
    }
};

void control_of_a_decode_is_exact() {
    decoding::quiet_log();
    const TempDir dir;
    for (const tiny::Arch arch : {tiny::Arch::qwen3moe, tiny::Arch::hy_v3, tiny::Arch::gpt_oss}) {
        tiny::Model tiny_model;
        tiny_model.arch = arch;
        tiny_model.n_layer = 3;
        tiny_model.n_expert = 16;
        tiny_model.n_expert_used = 3;
        const std::string path = tiny::write(tiny_model, dir.file(tiny_model.arch_name()));
        const decoding::ModelPtr model(llama_model_load_from_file(path.c_str(), llama_model_default_params()));
        Control control;
        llama_context_params params = llama_context_default_params();
        params.n_ctx = 256;
        params.n_batch = params.n_ubatch = decoding::kBatch;
        params.n_threads = params.n_threads_batch = 1;
        params.cb_eval = Control::on_node;
        params.cb_eval_user_data = &control;
        const decoding::ContextPtr context(llama_init_from_model(model.get(), params));
        decoding::Run run;
        decoding::generate(context.get(), run, [](int) {});
        check::that(control.why_not.empty(), (std::string(tiny_model.arch_name()) + ": " + control.why_not).c_str(),
                    __FILE__, __LINE__);
        CHECK(control.n_routings == 3 * decoding::kDecode);
        CHECK(control.n_different == 0);
    }
}

}  // namespace

int main() {
    check::run("the control of a decode is exact", control_of_a_decode_is_exact);
    return check::result();
}
