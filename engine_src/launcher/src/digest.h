// What files there are and what is in them: whether a copy is whole, and whether it is needed at all.
#pragma once

#include <functional>

#include "options.h"

namespace launcher {

// The answer as JSON. `stop` is asked between pieces; a stopped digest has no answer. Throws std::runtime_error for
// a file that cannot be read.
std::optional<std::string> digest_json(const Options & options, const std::function<bool()> & stop);

}  // namespace launcher
