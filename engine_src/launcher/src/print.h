// Standard output, where a lost answer is an error.
#pragma once

#include <string>

namespace launcher {

// Throws OutputError.
void print(const std::string & text);

}  // namespace launcher
