// What --moe-dump asks for, and the names of its files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moe {

// One MoE layer, and where the names of its files begin.
struct MoeDump {
    uint32_t layer = 0;
    std::string prefix;
};

// What a dump has rows of, each in a file of this name.
enum class DumpQuantity { input, router_input, logits, probs, ids, weights, output };
extern const std::vector<const char *> kDumpNames;  // by quantity

std::string dump_path(const MoeDump & request, const char * name);

// Of all its files.
std::vector<std::string> dump_paths(const MoeDump & request);

}  // namespace moe
