// Computes llama.cpp's graphs with the CPU backend, except for the expert matmuls: those run over the slots of the
// expert store.
//
// The matmuls of one layer are separate nodes of the graph, with other nodes in between. A *pass* spans them: it begins
// with the layer's first expert matmul, when the routed ids are known, and ends with the last, when the experts lose
// their pins. Where every expert of a pass is in memory its matmuls are computed in place, together with the nodes
// around them, by one call of the CPU backend; elsewhere each is computed on its own, expert by expert as they arrive.
#pragma once

#include "catalog.h"
#include "compute_tracer.h"
#include "expert_matmul.h"
#include "expert_store.h"
#include "moe_graph.h"
#include "node_watcher.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace moe {

// Looks at, and may change, what the routers have decided. Called by the executor between nodes.
class RoutingObserver {
public:
    virtual ~RoutingObserver() = default;

    // What of the next graph it has to look at.
    virtual MoeGraph::Wanted wants() const = 0;
    virtual void on_graph(const MoeGraph & graph) = 0;
    // The input of the block's router is in memory.
    virtual void on_router_input(const MoeBlockNodes & nodes, uint32_t block) = 0;
    // The block's ids are there and nothing has used them: they may be rewritten.
    virtual void on_routing(const MoeBlockNodes & nodes, uint32_t block) = 0;
    // Ids and weights are final, no expert has been asked for: both may be rewritten.
    virtual void on_weights(const MoeBlockNodes & nodes, uint32_t block, const ggml_tensor * ids) = 0;
    // What the block needs is in memory or on its way.
    virtual void on_experts(const MoeBlockNodes & nodes, uint32_t block, const std::vector<uint32_t> & experts,
                            const std::vector<Residency> & residency) = 0;
};

struct ExecutorOptions {
    bool overlap = false;
    bool load_all = false;
};

struct ExecutorCounters {
    uint64_t requests = 0;
    double stall_ms = 0;
    double manage_ms = 0;
};

// Not thread-safe: contexts that share a model decode one after the other.
class Executor {
public:
    // `observer` and `trace` may be nullptr. Everything passed in must outlive it.
    Executor(const Catalog & catalog, ExpertStore & store, const ExecutorOptions & options, RoutingObserver * observer,
             ComputeTracer * trace);
    ~Executor();

    // nullptr: nobody.
    void watch(NodeWatcher * watcher) { watcher_ = watcher; }

    // Throws Error; the store is then consistent and the next graph starts afresh.
    void compute(ggml_cgraph * graph, ggml_backend_t cpu);

    ExecutorCounters counters() const { return counters_; }

private:
    struct Pass {
        uint32_t block = 0;
        uint64_t parts_done = 0;  // bit per part
        Routing routing;
        std::unique_ptr<LayerExperts> experts;
    };

    void run(ggml_cgraph * graph);
    void run_nodes(int begin, int end);
    void compute_nodes(int begin, int end);
    bool continues_pass(const ggml_tensor * node, PartRef ref) const;
    void begin_pass(const ggml_tensor * node, PartRef ref);
    bool in_memory(uint32_t part);
    void compute_part(ggml_tensor * node, PartRef ref);
    void compute_streamed(ggml_tensor * node, PartRef ref);
    void multiply(ggml_tensor * node, PartRef ref, const std::vector<ExpertSlot> & where);
    void finish_part(PartRef ref);
    void end_passes();
    void wait(ReadBatch & batch);
    std::vector<size_t> wait_new(ReadBatch & batch, size_t first, size_t last);

    const Catalog & catalog_;
    ExpertStore & store_;
    const ExecutorOptions options_;
    RoutingObserver * const observer_;
    ComputeTracer * const trace_;
    NodeWatcher * watcher_ = nullptr;
    ExpertMatmul matmul_;
    ExecutorCounters counters_;

    // Of the graph at hand.
    ggml_cgraph * graph_ = nullptr;
    ggml_backend_t cpu_ = nullptr;
    MoeGraph moe_;
    std::unique_ptr<Pass> pass_;
    std::vector<std::unique_ptr<Pass>> patched_;  // passes whose last nodes are patched and not computed yet
    int64_t compute_ns_ = 0;
    int64_t stall_ns_ = 0;
};

}  // namespace moe
