// Routing taken from a recorded route trace (docs/engine.md, --forced-routes) and mapped onto a model, so that a small
// model asks its cache for what a large one asked for.
#pragma once

#include "catalog.h"

#include <cstdint>
#include <string>
#include <vector>

namespace moe {

// A model with as many MoE layers and experts as the traced one takes its routes as they are: an exact mapping, the
// only one that reproduces hit rates. Any other model gets routes of the same rhythm:
// - Its last MoE layer takes the trace's last, layer i of the others the trace's i, cyclically. The last stands
//   apart because llama.cpp computes it for the last prompt token alone, so that a trace has no more of it.
// - Expert e of E becomes floor(e * E_model / E), or the next one up, cyclically, that this token does not use yet.
class ForcedRoutes {
public:
    // `blocks` are the model's (Catalog), `top_k` is the number of experts per token of this run. Throws Error(usage)
    // for a trace that is damaged, has more than one turn or does not fit, Error(io) for a file that cannot be read.
    static ForcedRoutes read(const std::string & path, const std::vector<MoeBlock> & blocks, uint32_t top_k);

    // Throws Error(usage) unless the trace has a route for everything that a prompt of `n_prompt` tokens and the
    // decoding of `n_predict` more compute.
    void check_run(uint64_t n_prompt, uint64_t n_predict) const;

    // The top_k() experts of the token at this absolute position, in the numbers of the model, best first. nullptr
    // where the trace has none. Both sets of a layer with two have one route: the ids of the first.
    const int32_t * route(uint32_t block, uint64_t position) const;

    // What an expert of this block's layer took up in the traced engine's cache: its own bytes, or a slot. Its layers may
    // differ in size where this model's do not: a cache that accounts in these bytes evicts when the traced one did.
    uint64_t expert_bytes(uint32_t block) const { return layers_[layer_of_block_[block]].expert_bytes; }
    // Whether they are slots: the trace is one of this engine.
    bool counts_slots() const { return counts_slots_; }

    // Of the trace: MoE layers, experts of each, positions from 0 on that are complete, how many of them prompt.
    uint32_t layers() const { return trace_layers_; }
    uint32_t experts() const { return trace_experts_; }
    uint32_t top_k() const { return top_k_; }
    uint64_t n_positions() const { return n_positions_; }
    uint64_t n_prompt() const { return n_prompt_; }
    bool exact() const { return exact_; }
    const std::string & path() const { return path_; }

private:
    struct Layer {  // of the model
        uint64_t expert_bytes = 0;
        std::vector<int32_t> experts;  // position * top_k + slot; -1: no route
    };

    const int32_t * layer_route(const Layer & layer, uint64_t position) const;
    bool complete(uint64_t position) const;  // a route for all that the traced engine computed

    std::string path_;
    uint32_t trace_layers_ = 0;
    uint32_t trace_experts_ = 0;
    uint32_t top_k_ = 0;
    uint64_t n_prompt_ = 0;
    uint64_t n_positions_ = 0;
    bool exact_ = false;
    bool counts_slots_ = false;
    std::vector<uint32_t> layer_of_block_;
    std::vector<Layer> layers_;
};

}  // namespace moe
