#include "dump_files.h"

namespace moe {

const std::vector<const char *> kDumpNames = {"input", "router_input", "logits", "probs", "ids", "weights", "output"};

std::string dump_path(const MoeDump & request, const char * name) {
    return request.prefix + "." + name + "." + std::to_string(request.layer);
}

std::vector<std::string> dump_paths(const MoeDump & request) {
    std::vector<std::string> paths;
    for (const char * name : kDumpNames) {
        paths.push_back(dump_path(request, name));
    }
    paths.push_back(dump_path(request, "meta"));
    return paths;
}

}  // namespace moe
