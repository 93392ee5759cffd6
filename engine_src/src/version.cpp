#include "version.h"

#include "cpu_level.h"
#include "llama.h"

namespace moe {

std::string engine_version() { return MOE_VERSION; }
std::string engine_build_id() { return MOE_BUILD_ID; }

std::string version_line() {
    return "moe-engine " + engine_version() + " build " + engine_build_id() + " llama.cpp " + llama_version() +
           " level " + cpu_level();
}

}  // namespace moe
