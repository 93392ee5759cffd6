#include "moe_graph.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <algorithm>
#include <cstring>

namespace moe {

namespace {

bool named(const ggml_tensor * t, const char * prefix) { return std::strncmp(t->name, prefix, std::strlen(prefix)) == 0; }

const ggml_tensor * viewed(const ggml_tensor * t) { return t->view_src != nullptr ? t->view_src : t; }

// llama.cpp multiplies the experts' outputs by the weights, or their inputs: either way next to the matmuls.
ggml_tensor * find_weights(ggml_cgraph * graph, int from, const ggml_tensor * ids) {
    const int64_t n_used = ids->ne[0];
    const int64_t n_tokens = ids->ne[1];
    for (int i = from; i < ggml_graph_n_nodes(graph); ++i) {
        ggml_tensor * node = ggml_graph_node(graph, i);
        if (node->op == GGML_OP_ARGSORT) {
            break;
        }
        if (node->op == GGML_OP_MUL && named(node, "ffn_moe_weighted")) {
            ggml_tensor * weights = node->src[1];
            const bool fits = weights->type == GGML_TYPE_F32 && weights->ne[0] == 1 && weights->ne[1] == n_used &&
                              weights->ne[2] == n_tokens;
            return fits ? weights : nullptr;
        }
    }
    return nullptr;
}

int find_logits(ggml_cgraph * graph, int argsort, const RouterRule & rule) {
    for (int i = argsort; i-- > 0;) {
        const ggml_tensor * node = ggml_graph_node(graph, i);
        if (node->op == GGML_OP_MUL_MAT && node->src[0] == rule.matrix) {
            return i;
        }
    }
    return -1;
}

}  // namespace

MoeGraph MoeGraph::read(ggml_cgraph * graph, const Catalog & catalog, const Wanted & wanted) {
    MoeGraph result;
    result.blocks.resize(catalog.blocks().size());
    int argsort = -1;
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        ggml_tensor * node = ggml_graph_node(graph, i);
        if (node->op == GGML_OP_ARGSORT && named(node, "ffn_moe_argsort")) {
            argsort = i;
        }
        // Without rows: the last layer, in a batch of which no output is wanted.
        if (node->op != GGML_OP_MUL_MAT_ID || ggml_is_empty(node)) {
            continue;
        }
        const PartRef * ref = catalog.find_part(node->src[0]->name);
        if (ref == nullptr) {
            continue;
        }
        result.stops.push_back({MoeStop::Kind::expert_matmul, i, ref->block, ref->part});
        MoeBlockNodes & block = result.blocks[ref->block];
        const bool first = block.argsort == nullptr;
        const bool look = wanted.nodes || wanted.router_input || wanted.routing;
        if (!look || !first || argsort < 0 || viewed(node->src[2]) != ggml_graph_node(graph, argsort)) {
            continue;
        }
        block.argsort = ggml_graph_node(graph, argsort);
        block.weights = find_weights(graph, argsort + 1, node->src[2]);
        if (wanted.routing) {
            result.stops.push_back({MoeStop::Kind::routing, argsort, ref->block, 0});
        }
        if (wanted.router_input) {
            block.router = read_router_rule(block.argsort, block.no_router);
            const int logits = block.router ? find_logits(graph, argsort, *block.router) : -1;
            if (logits >= 0) {
                result.stops.push_back({MoeStop::Kind::router_input, logits, ref->block, 0});
            }
        }
    }
    std::stable_sort(result.stops.begin(), result.stops.end(),
                     [](const MoeStop & a, const MoeStop & b) { return a.node < b.node; });
    return result;
}

}  // namespace moe
