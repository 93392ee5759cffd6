// Whether reads that pass the page cache by bring what was written.
#pragma once

#include <optional>
#include <string>

namespace launcher {

struct DirectIo {
    bool writable = false;
    std::optional<bool> works;         // empty: could not be tried
    std::optional<std::string> reason;  // why not, in words
};

// Writes a file of known bytes in the directory, and reads it back both ways; nothing is left of it.
DirectIo test_direct_io(const std::string & directory);

}  // namespace launcher
