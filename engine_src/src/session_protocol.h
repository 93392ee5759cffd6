// The lines that a session answers with: a tag and one JSON object each (docs/session.md).
#pragma once

#include "telemetry.h"

#include <cstdint>
#include <optional>
#include <string>

namespace moe {

struct SessionReady {
    double load_s = 0;
    std::string arch;
    uint32_t n_ctx = 0;
    uint32_t n_expert_used = 0;  // effective
};

// The expert cache since the session began.
struct SessionCache {
    double hit_pct = -1;  // -1, the protocol's word for it: there is no cache
    std::optional<uint64_t> resident_bytes;
    std::optional<uint64_t> budget_bytes;
};

struct SessionProgress {
    uint64_t step = 0;  // from 1
    int32_t steps = 0;  // asked for
    CallCost cost;
    double cache_hit_pct = -1;
    std::string delta_text;
};

struct SessionDone {
    uint64_t id = 0;
    bool cancelled = false;
    uint64_t tokens = 0;
    uint64_t n_prompt = 0;  // evaluated for this request
    uint64_t n_past = 0;
    CallCost prefill;
    CallCost decode;
    double loop_ms = 0;  // of all tokens, decoding included
    double load_s = 0;
    SessionCache cache;
    std::string text;
};

// All without the newline. Text need not be UTF-8: bytes that are not become U+FFFD.
std::string ready_line(const SessionReady & ready);
std::string begin_line(uint64_t id);
std::string progress_line(const SessionProgress & progress);
std::string done_line(const SessionDone & done);
std::string session_error_line(uint64_t id, bool fatal, const std::string & message);

}  // namespace moe
