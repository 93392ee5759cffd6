// Other engines on the device: they would be measured along with ours.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace launcher {

struct EngineProcess {
    int64_t pid = 0;
    std::string name;
};

struct OtherEngines {
    std::vector<EngineProcess> found;
    bool complete = false;  // processes of other users can be seen here
};

OtherEngines find_engines(const std::string & proc_root);

bool is_engine_name(std::string_view name);

}  // namespace launcher
