// Which build this is.
#pragma once

#include <string>

namespace moe {

std::string engine_version();
std::string engine_build_id();
std::string version_line();

}  // namespace moe
