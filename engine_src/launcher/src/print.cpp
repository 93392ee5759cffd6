#include "print.h"

#include <cstdio>

#include "errors.h"

namespace launcher {

void print(const std::string & text) {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
        throw OutputError("cannot write to standard output");
    }
}

}  // namespace launcher
