// All that must be known of a device before anything is measured on it.
#pragma once

#include "options.h"

namespace launcher {

// The answer as JSON. Throws std::runtime_error when the directory is not there.
std::string inspect_json(const Options & options);

}  // namespace launcher
