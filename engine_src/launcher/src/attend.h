// The host's connection to a cell under way: signs of life in one direction, news in the other.
#pragma once

#include "options.h"

namespace launcher {

// Until the end of stdin, or nobody listens any more, or no line has come for `lease_s`.
void attend(const Options & options);

}  // namespace launcher
