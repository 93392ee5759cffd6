// What the pager is told about a llama_decode, which the graph does not say.
#pragma once

#include <cstdint>

namespace moe {

enum class Phase : uint8_t { prefill = 0, decode = 1 };

struct CallInfo {
    Phase phase = Phase::prefill;
    uint64_t first_position = 0;  // of the call's first token in the sequence
    uint32_t n_tokens = 0;
    uint64_t turn = 0;  // sequences that were decoded before this one

    // Of a row of a node that computes `n_rows` rows: where those are fewer than tokens they are the last ones.
    uint64_t position(uint64_t row, uint64_t n_rows) const { return first_position + n_tokens - n_rows + row; }
};

}  // namespace moe
