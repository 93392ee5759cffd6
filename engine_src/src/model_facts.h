// What is known of a model before it is loaded, from its file alone.
#pragma once

#include "json.h"

#include <cstdint>
#include <optional>
#include <string>

namespace moe {

struct ModelFacts {
    std::string path;
    std::string arch;
    std::optional<std::string> name;
    uint64_t file_bytes = 0;      // of all shards
    uint64_t metadata_bytes = 0;  // in front of the first shard's tensors
    uint32_t n_moe_layer = 0;
    uint32_t n_expert = 0;
    uint32_t n_expert_used = 0;  // the model's own
    uint64_t expert_bytes = 0;
    uint64_t expert_bytes_max = 0;
    uint64_t dense_bytes = 0;
};

// Throws Error(model) when the file is absent, no GGUF, truncated or not a MoE model.
ModelFacts read_model_facts(const std::string & path);

}  // namespace moe
