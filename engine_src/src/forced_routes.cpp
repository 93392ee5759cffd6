#include "forced_routes.h"

#include "recorded_routes.h"

#include <algorithm>
#include <map>
#include <utility>

namespace moe {

namespace {

// Which of the trace's layers a layer of the model follows.
size_t source_layer(size_t layer, size_t n_model, size_t n_trace) {
    const size_t last = n_trace - 1;
    return layer + 1 == n_model ? last : layer % std::max<size_t>(last, 1);
}

// The model's numbers for the experts of one token: k distinct ones, k being at most n_model.
void map_experts(const RecordedRow * cell, uint32_t k, uint32_t n_trace, uint32_t n_model, int32_t * to) {
    for (uint32_t slot = 0; slot < k; ++slot) {
        auto expert = static_cast<int32_t>(static_cast<uint64_t>(cell[slot].expert) * n_model / n_trace);
        while (std::find(to, to + slot, expert) != to + slot) {
            expert = expert + 1 == static_cast<int32_t>(n_model) ? 0 : expert + 1;
        }
        to[slot] = expert;
    }
}

// A MoE layer of the trace, with the first row of its cell at each step.
struct Source {
    uint64_t expert_bytes = 0;
    std::vector<const RecordedRow *> cells;  // nullptr: none
};

std::vector<Source> moe_layers(const RecordedRoutes & trace, uint64_t n_steps) {
    std::map<uint32_t, Source> by_layer;
    for (const auto & [layer, size] : trace.layers) {
        if (size.expert_bytes > 0) {
            by_layer[layer] = {size.slot_bytes.value_or(size.expert_bytes), std::vector<const RecordedRow *>(n_steps)};
        }
    }
    for (size_t i = 0; i < trace.rows.size(); i += trace.n_used) {
        const RecordedRow & row = trace.rows[i];
        by_layer.at(row.layer).cells[row.step] = &row;
    }
    std::vector<Source> sources;
    for (auto & [layer, source] : by_layer) {
        sources.push_back(std::move(source));
    }
    return sources;
}

}  // namespace

ForcedRoutes ForcedRoutes::read(const std::string & path, const std::vector<MoeBlock> & blocks, uint32_t top_k) {
    const RecordedRoutes trace = RecordedRoutes::read(path, top_k);
    const uint64_t n_steps = uint64_t{trace.rows.back().step} + 1;
    const std::vector<Source> sources = moe_layers(trace, n_steps);

    ForcedRoutes forced;
    forced.path_ = path;
    forced.trace_layers_ = static_cast<uint32_t>(sources.size());
    forced.trace_experts_ = trace.n_expert;
    forced.top_k_ = top_k;
    forced.n_prompt_ = trace.n_prompt;

    std::vector<uint32_t> n_expert;  // of the model's MoE layers
    for (size_t b = 0; b < blocks.size(); ++b) {
        if (b == 0 || blocks[b].layer != blocks[b - 1].layer) {
            n_expert.push_back(blocks[b].n_expert);
        }
        forced.layer_of_block_.push_back(static_cast<uint32_t>(n_expert.size() - 1));
    }
    forced.exact_ = n_expert.size() == sources.size();
    for (size_t l = 0; l < n_expert.size(); ++l) {
        if (top_k > n_expert[l]) {
            refuse_trace(path, "routes " + std::to_string(top_k) + " experts per token, this model has only " +
                                   std::to_string(n_expert[l]) + ": give a trace with fewer or a larger model");
        }
        forced.exact_ = forced.exact_ && n_expert[l] == trace.n_expert;
        const Source & source = sources[source_layer(l, n_expert.size(), sources.size())];
        Layer layer{source.expert_bytes, std::vector<int32_t>(n_steps * top_k, -1)};
        for (uint64_t step = 0; step < n_steps; ++step) {
            if (source.cells[step] != nullptr) {
                map_experts(source.cells[step], top_k, trace.n_expert, n_expert[l], &layer.experts[step * top_k]);
            }
        }
        forced.layers_.push_back(std::move(layer));
    }
    forced.counts_slots_ = trace.counts_slots();
    while (forced.n_positions_ < n_steps && forced.complete(forced.n_positions_)) {
        ++forced.n_positions_;
    }
    return forced;
}

bool ForcedRoutes::complete(uint64_t position) const {
    return std::all_of(layers_.begin(), layers_.end(), [&](const Layer & layer) {
        const bool not_computed = &layer == &layers_.back() && position + 1 < n_prompt_;
        return not_computed || layer_route(layer, position) != nullptr;
    });
}

void ForcedRoutes::check_run(uint64_t n_prompt, uint64_t n_predict) const {
    if (n_prompt + n_predict > n_positions_) {
        refuse_trace(path_, "has routes for " + std::to_string(n_positions_) + " positions; a prompt of " +
                                std::to_string(n_prompt) + " tokens and --predict " + std::to_string(n_predict) +
                                " need " + std::to_string(n_prompt + n_predict));
    }
    for (uint64_t position = n_prompt - std::min<uint64_t>(n_prompt, 1); position < n_prompt + n_predict; ++position) {
        if (layer_route(layers_.back(), position) == nullptr) {
            refuse_trace(path_, "has no route of the last layer at position " + std::to_string(position) +
                                    ": give a prompt of at least " + std::to_string(n_prompt_) +
                                    " tokens, as many as were recorded");
        }
    }
}

const int32_t * ForcedRoutes::route(uint32_t block, uint64_t position) const {
    return layer_route(layers_[layer_of_block_[block]], position);
}

const int32_t * ForcedRoutes::layer_route(const Layer & layer, uint64_t position) const {
    const uint64_t at = position * top_k_;
    return at < layer.experts.size() && layer.experts[at] >= 0 ? &layer.experts[at] : nullptr;
}

}  // namespace moe
