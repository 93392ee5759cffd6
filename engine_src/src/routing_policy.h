// Everything that looks at, changes or reacts to what routers decide: forced routes, dropping, the route trace, and
// foresight.
#pragma once

#include "call_info.h"
#include "catalog.h"
#include "drop.h"
#include "executor.h"
#include "expert_store.h"
#include "forced_routes.h"
#include "foresight.h"
#include "paging_counters.h"
#include "traces.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace moe {

struct RoutingOptions {
    std::optional<DropRule> drop;
    bool drop_in_prefill = false;
    ForesightOptions foresight;
    const ForcedRoutes * forced = nullptr;
    RouteTrace * trace = nullptr;
};

class RoutingPolicy final : public RoutingObserver {
public:
    // Everything passed in must outlive it.
    RoutingPolicy(const Catalog & catalog, ExpertStore & store, const RoutingOptions & options);

    void begin_call(const CallInfo & call) { call_ = call; }

    MoeGraph::Wanted wants() const override;
    void on_graph(const MoeGraph & graph) override;
    void on_router_input(const MoeBlockNodes & nodes, uint32_t block) override;
    void on_routing(const MoeBlockNodes & nodes, uint32_t block) override;
    void on_weights(const MoeBlockNodes & nodes, uint32_t block, const ggml_tensor * ids) override;
    void on_experts(const MoeBlockNodes & nodes, uint32_t block, const std::vector<uint32_t> & experts,
                    const std::vector<Residency> & residency) override;

    const PagerCounters::Drops & drops() const { return drops_; }
    const Foresight & foresight() const { return foresight_; }
    void stop_ranking() { foresight_.stop(); }

private:
    bool drops_now() const { return options_.drop && (call_.phase == Phase::decode || options_.drop_in_prefill); }
    void drop(const MoeBlockNodes & nodes, uint32_t block, const ggml_tensor * ids);

    const Catalog & catalog_;
    ExpertStore & store_;
    const RoutingOptions options_;
    Foresight foresight_;
    CallInfo call_;
    PagerCounters::Drops drops_;
    std::vector<RouteRow> rows_;  // of the block at hand, until it is known what was resident
};

}  // namespace moe
