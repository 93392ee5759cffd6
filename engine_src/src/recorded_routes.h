// Reads a route trace (docs/engine.md) that is to be forced: strictly, because a damaged one would be obeyed silently.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace moe {

// One route: an expert that the router chose for a token.
struct RecordedRow {
    uint32_t step = 0;  // position
    uint16_t layer = 0;
    uint16_t slot = 0;  // rank in the top-k
    int32_t expert = 0;
    uint32_t line = 0;

    bool same_cell(const RecordedRow & other) const { return step == other.step && layer == other.layer; }
    std::string cell() const { return "step " + std::to_string(step) + ", layer " + std::to_string(layer); }
};

struct RecordedLayer {
    uint64_t expert_bytes = 0;           // of one expert; 0: not streamed, has no rows
    std::optional<uint64_t> slot_bytes;  // the room that one took in the traced cache, where that counts slots
};

// A cell is the rows of one token in one layer: its top-k.
struct RecordedRoutes {
    uint32_t n_expert = 0;                      // of a layer
    uint32_t n_used = 0;                        // top-k
    std::map<uint32_t, RecordedLayer> layers;   // all of the model
    uint64_t n_prompt = 0;                      // steps of the prompt
    std::vector<RecordedRow> rows;  // sorted by step, layer, slot; steps without a gap from 0 on, cells complete

    // Whether the traced cache counted slots: all layers with experts say so, or none.
    bool counts_slots() const;

    // Throws Error(usage) with file and line for a trace that is damaged, has more than one turn, or another top-k than
    // `top_k`; Error(io) for a file that cannot be read.
    static RecordedRoutes read(const std::string & path, uint32_t top_k);
};

// Throws Error(usage): `what` is wrong with the trace at `path`.
[[noreturn]] void refuse_trace(const std::string & path, const std::string & what);

}  // namespace moe
