// Files in the page cache, and out of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace launcher {

class JsonWriter;

struct PageCache {
    // Of all the files together; empty: this system does not tell.
    std::optional<int64_t> before_bytes;
    std::optional<int64_t> after_bytes;
};

// So that they are read from storage again. Pages that another process has mapped stay; `after_bytes` tells.
// Throws std::runtime_error for a file that cannot be opened.
PageCache evict_from_page_cache(const std::vector<std::string> & paths);

void write_json(JsonWriter & json, const PageCache & cache);

}  // namespace launcher
