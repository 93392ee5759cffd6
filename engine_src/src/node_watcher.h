// Sees nodes of a graph right after they were computed. llama.cpp's scheduler asks in plain mode, the executor does
// when it streams: same questions, same order.
#pragma once

struct ggml_tensor;

namespace moe {

class NodeWatcher {
public:
    virtual ~NodeWatcher() = default;

    // Asked once for every node, in the order of the graph, before it is computed: whether computed() shall follow.
    virtual bool wants(const ggml_tensor & node) noexcept = 0;

    // The node was computed and nothing after it: its memory and that of its operands is as the node left it. Where the
    // node is an expert matmul, weight and ids may be those of the arena's slots.
    virtual void computed(const ggml_tensor & node) noexcept = 0;
};

}  // namespace moe
