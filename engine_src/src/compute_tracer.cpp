#include "compute_tracer.h"

#include "clock.h"
#include "error.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <sys/resource.h>

#include <cctype>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace moe {

namespace {

bool has_nothing_to_compute(const ggml_tensor & node) {
    return node.op == GGML_OP_NONE || node.op == GGML_OP_RESHAPE || node.op == GGML_OP_VIEW ||
           node.op == GGML_OP_PERMUTE || node.op == GGML_OP_TRANSPOSE;
}

}  // namespace

uint64_t major_faults() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<uint64_t>(usage.ru_majflt);
}

// llama.cpp names the nodes of a layer `what-<layer>`, except for some in between and those that belong to none.
int32_t ComputeTracer::layer_of(const ggml_tensor & node) {
    const char * dash = std::strrchr(node.name, '-');
    if (dash != nullptr && std::isdigit(static_cast<unsigned char>(dash[1])) != 0) {
        layer_ = std::atoi(dash + 1);
    } else if (std::strncmp(node.name, "result", 6) == 0 || std::strncmp(node.name, "inp_", 4) == 0) {
        layer_ = -1;
    }
    return layer_;
}

void ComputeTracer::run(ggml_cgraph & graph, int begin, int end, ggml_backend_t cpu) {
    while (begin < end) {
        const ggml_tensor & node = *ggml_graph_node(&graph, begin);
        const int32_t layer = layer_of(node);
        int stop = begin + 1;
        if (grain_ == Grain::layer) {
            while (stop < end && layer_of(*ggml_graph_node(&graph, stop)) == layer) {
                ++stop;
            }
            layer_ = layer;
        } else if (has_nothing_to_compute(node)) {
            begin = stop;
            continue;
        }
        ggml_cgraph view = ggml_graph_view(&graph, begin, stop);
        const uint64_t faults = major_faults();
        const int64_t start = now_ns();
        const ggml_status status = ggml_backend_graph_compute(cpu, &view);
        if (status != GGML_STATUS_SUCCESS) {
            throw Error(ExitCode::other, std::string("the CPU backend failed: ") + ggml_status_to_string(status));
        }
        add(node, now_ns() - start, major_faults() - faults);
        begin = stop;
    }
}

void ComputeTracer::add(const ggml_tensor & node, int64_t wall_ns, uint64_t majflt) {
    const int32_t layer = layer_of(node);
    if (grain_ == Grain::node) {
        records_.push_back({layer, ggml_op_desc(&node), node.name, static_cast<uint64_t>(wall_ns), majflt});
        return;
    }
    if (records_.empty() || records_.back().layer != layer) {
        records_.push_back({layer, "layer", layer < 0 ? "other" : "layer-" + std::to_string(layer), 0, 0});
    }
    records_.back().wall_ns += static_cast<uint64_t>(wall_ns);
    records_.back().majflt += majflt;
}

std::vector<ComputeRecord> ComputeTracer::take() {
    layer_ = -1;
    return std::exchange(records_, {});
}

}  // namespace moe
