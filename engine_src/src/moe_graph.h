// Where a graph of llama.cpp routes tokens and multiplies by experts. Found by the names that llama.cpp gives these
// nodes in every architecture (llm_graph_context::build_moe_ffn).
#pragma once

#include "catalog.h"
#include "router.h"

#include "ggml.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

struct ggml_cgraph;

namespace moe {

// A node of the graph at which something of ours happens.
struct MoeStop {
    enum class Kind {
        router_input,   // after the node: the input of a router lies in memory, untouched
        routing,        // after the node: the ids are there, and nothing has read them yet
        expert_matmul,  // instead of the node
    };
    Kind kind = Kind::expert_matmul;
    int node = 0;
    uint32_t block = 0;
    uint32_t part = 0;  // of an expert_matmul
};

// What a graph has of one block. Pointers are valid as long as the graph.
struct MoeBlockNodes {
    ggml_tensor * argsort = nullptr;  // experts best first, [n_expert, n_tokens]: the first top-k of a row are routed to
    ggml_tensor * weights = nullptr;  // of the routed experts, [1, k, n_tokens]; computed before the first expert matmul
    std::optional<RouterRule> router;
    std::string no_router;            // why there is none
};

struct MoeGraph {
    std::vector<MoeStop> stops;  // in the order of nodes
    std::vector<MoeBlockNodes> blocks;

    // Stops that nobody needs cut the graph into more pieces than necessary.
    struct Wanted {
        bool nodes = false;  // fill in `blocks`; the two below imply it
        bool router_input = false;
        bool routing = false;
    };
    static MoeGraph read(ggml_cgraph * graph, const Catalog & catalog, const Wanted & wanted);
};

}  // namespace moe
