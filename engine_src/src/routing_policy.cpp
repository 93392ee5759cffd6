#include "routing_policy.h"

#include "error.h"

#include <cmath>
#include <cstring>
#include <string>
#include <unordered_map>

namespace moe {

namespace {

int32_t * id_at(const ggml_tensor * ids, int64_t row, int64_t k) {
    return reinterpret_cast<int32_t *>(static_cast<std::byte *>(ids->data) + static_cast<size_t>(row) * ids->nb[1] +
                                       static_cast<size_t>(k) * ids->nb[0]);
}

float * weight_at(const ggml_tensor * weights, int64_t row, int64_t k) {
    return reinterpret_cast<float *>(static_cast<std::byte *>(weights->data) +
                                     static_cast<size_t>(row) * weights->nb[2] +
                                     static_cast<size_t>(k) * weights->nb[1]);
}

}  // namespace

RoutingPolicy::RoutingPolicy(const Catalog & catalog, ExpertStore & store, const RoutingOptions & options)
    : catalog_(catalog), store_(store), options_(options), foresight_(catalog, store, options.foresight) {}

MoeGraph::Wanted RoutingPolicy::wants() const {
    MoeGraph::Wanted wanted;
    wanted.nodes = true;
    wanted.router_input = foresight_.wants_router_input(call_);
    wanted.routing = options_.forced != nullptr;
    return wanted;
}

void RoutingPolicy::on_graph(const MoeGraph & graph) {
    if (foresight_.wants_router_input(call_)) {
        foresight_.learn(graph, call_);
    }
}

void RoutingPolicy::on_router_input(const MoeBlockNodes & nodes, uint32_t block) {
    foresight_.on_router_input(nodes.router->input, block);
}

void RoutingPolicy::on_routing(const MoeBlockNodes & nodes, uint32_t block) {
    const ggml_tensor * argsort = nodes.argsort;
    const auto k = static_cast<int64_t>(options_.forced->top_k());
    for (int64_t row = 0; row < argsort->ne[1]; ++row) {
        const uint64_t position = call_.position(static_cast<uint64_t>(row), static_cast<uint64_t>(argsort->ne[1]));
        const int32_t * route = options_.forced->route(block, position);
        if (route == nullptr) {
            throw Error(ExitCode::usage, "--forced-routes: '" + options_.forced->path() + "' has no route for layer " +
                                             std::to_string(catalog_.block(block).layer) + " at position " +
                                             std::to_string(position));
        }
        for (int64_t i = 0; i < k; ++i) {
            *id_at(argsort, row, i) = route[i];
        }
    }
}

void RoutingPolicy::on_weights(const MoeBlockNodes & nodes, uint32_t block, const ggml_tensor * ids) {
    const int64_t k = ids->ne[0];
    const int64_t n_rows = ids->ne[1];
    if (options_.forced != nullptr && nodes.argsort == nullptr) {
        throw Error(ExitCode::model, "--forced-routes: layer " + std::to_string(catalog_.block(block).layer) +
                                         " of this model has a router of an unknown kind");
    }
    std::vector<int32_t> last(static_cast<size_t>(k));
    for (int64_t i = 0; i < k; ++i) {
        last[static_cast<size_t>(i)] = *id_at(ids, n_rows - 1, i);
    }
    foresight_.on_routing(call_, block, last);

    if (options_.trace != nullptr) {
        rows_.clear();
        for (int64_t row = 0; row < n_rows; ++row) {
            for (int64_t i = 0; i < k; ++i) {
                RouteRow r;
                r.step = call_.position(static_cast<uint64_t>(row), static_cast<uint64_t>(n_rows));
                r.slot = static_cast<uint32_t>(i);
                r.expert = static_cast<uint32_t>(*id_at(ids, row, i));
                r.weight = nodes.weights != nullptr ? *weight_at(nodes.weights, row, i) : NAN;
                rows_.push_back(r);
            }
        }
    }
    if (drops_now()) {
        drop(nodes, block, ids);
    }
}

void RoutingPolicy::drop(const MoeBlockNodes & nodes, uint32_t block, const ggml_tensor * ids) {
    if (nodes.weights == nullptr) {
        throw Error(ExitCode::model, "--drop-cold-experts: the routing weights of layer " +
                                         std::to_string(catalog_.block(block).layer) + " cannot be found in this model");
    }
    store_.collect_speculation();
    const auto k = static_cast<size_t>(ids->ne[0]);
    std::vector<int32_t> experts(k);
    std::vector<float> weights(k);
    std::vector<uint8_t> dropped;
    const auto resident = [&](int32_t expert) { return store_.resident(block, static_cast<uint32_t>(expert)); };
    for (int64_t row = 0; row < ids->ne[1]; ++row) {
        for (size_t i = 0; i < k; ++i) {
            experts[i] = *id_at(ids, row, static_cast<int64_t>(i));
            weights[i] = *weight_at(nodes.weights, row, static_cast<int64_t>(i));
        }
        drops_.routed += k;
        const uint32_t n = drop_cold_experts(*options_.drop, experts.data(), weights.data(), static_cast<uint32_t>(k),
                                             resident, dropped);
        if (n == 0) {
            continue;
        }
        drops_.dropped += n;
        for (size_t i = 0; i < k; ++i) {
            *id_at(ids, row, static_cast<int64_t>(i)) = experts[i];
            *weight_at(nodes.weights, row, static_cast<int64_t>(i)) = weights[i];
            if (options_.trace != nullptr) {
                rows_[static_cast<size_t>(row) * k + i].dropped = dropped[i] != 0;
            }
        }
    }
}

void RoutingPolicy::on_experts(const MoeBlockNodes &, uint32_t block, const std::vector<uint32_t> & experts,
                               const std::vector<Residency> & residency) {
    if (options_.trace != nullptr) {
        std::unordered_map<uint32_t, Residency> found;
        for (size_t i = 0; i < experts.size(); ++i) {
            found[experts[i]] = residency[i];
        }
        for (RouteRow & row : rows_) {
            const auto it = found.find(row.expert);
            row.residency = it != found.end() ? it->second : Residency::miss;  // dropped: nobody asked for it
        }
        options_.trace->add(call_, catalog_.block(block).layer, rows_);
    }
    foresight_.on_experts(call_, block);
}

}  // namespace moe
