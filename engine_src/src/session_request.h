// What a session's client can ask for, one line each (docs/session.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

namespace moe {

struct GenerateRequest {
    uint64_t id = 0;
    std::string prompt;
    std::optional<int32_t> n_predict;  // empty: the session's default
    bool clear_kv = true;
};

struct CancelRequest {
    std::optional<uint64_t> id;  // empty: whatever was asked for before
};

struct CloseRequest {};

// A line that asks for nothing that can be done.
struct BadRequest {
    uint64_t id = 0;  // as far as it could be read
    std::string why;
};

using Request = std::variant<GenerateRequest, CancelRequest, CloseRequest, BadRequest>;

Request parse_request(const std::string & line);

}  // namespace moe
