// Times the nodes of graphs for --compute-trace: one by one, or by layer.
#pragma once

#include "traces.h"

#include "ggml-backend.h"
#include "ggml.h"

#include <cstdint>
#include <vector>

struct ggml_cgraph;

namespace moe {

class ComputeTracer {
public:
    // By node each one is a graph of its own, which costs a start of the compute threads and forgoes fused kernels.
    enum class Grain { node, layer };

    explicit ComputeTracer(Grain grain) : grain_(grain) {}

    // Computes nodes [begin, end) of the graph. Throws Error(other) when the backend fails.
    void run(ggml_cgraph & graph, int begin, int end, ggml_backend_t cpu);

    // A node that was computed elsewhere; its time contains waiting for reads.
    void add(const ggml_tensor & node, int64_t wall_ns, uint64_t majflt);

    // What came together since the last call, in the order of execution.
    std::vector<ComputeRecord> take();

private:
    int32_t layer_of(const ggml_tensor & node);

    const Grain grain_;
    int32_t layer_ = -1;  // that the last named node belonged to
    std::vector<ComputeRecord> records_;
};

// Major page faults of this process so far.
uint64_t major_faults();

}  // namespace moe
