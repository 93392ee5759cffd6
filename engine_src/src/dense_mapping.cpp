#include "dense_mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstddef>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace moe {

namespace {

struct Mapping {
    uint64_t begin = 0;
    uint64_t end = 0;
    uint64_t offset = 0;  // in the file
};

std::vector<Mapping> mappings_of(const std::string & path) {
    std::vector<Mapping> found;
    char resolved[PATH_MAX];
    struct stat st {};
    if (realpath(path.c_str(), resolved) == nullptr || stat(resolved, &st) != 0) {
        return found;
    }
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        Mapping m;
        uint64_t inode = 0;
        int path_at = 0;
        // The device number is not compared: on overlay and btrfs it differs from stat's.
        if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %*s %" SCNu64 " %n", &m.begin, &m.end,
                        &m.offset, &inode, &path_at) == 4 &&
            inode == st.st_ino && line.compare(static_cast<size_t>(path_at), std::string::npos, resolved) == 0) {
            found.push_back(m);
        }
    }
    return found;
}

// Calls `visit(address, bytes)` for the mapped pages of every dense weight that a token reads as a whole.
template <class Visitor>
void visit_dense_pages(const Catalog & catalog, Visitor && visit) {
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    for (uint32_t shard = 0; shard < catalog.shards().size(); ++shard) {
        for (const Mapping & m : mappings_of(catalog.shards()[shard])) {
            for (const DenseTensor & tensor : catalog.dense()) {
                if (tensor.shard != shard || tensor.sparse_rows) {
                    continue;
                }
                const uint64_t first = std::max(tensor.offset / page * page, m.offset);
                const uint64_t last = std::min(tensor.offset + tensor.size, m.offset + (m.end - m.begin));
                if (first < last) {
                    visit(reinterpret_cast<std::byte *>(m.begin + (first - m.offset)), last - first);
                }
            }
        }
    }
}

}  // namespace

void prefetch_dense_mapping(const Catalog & catalog) {
    visit_dense_pages(catalog, [](std::byte * address, uint64_t bytes) {
        madvise(address, bytes, MADV_NORMAL);
        madvise(address, bytes, MADV_WILLNEED);
    });
}

void sweep_dense_mapping(const Catalog & catalog) {
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    visit_dense_pages(catalog, [page](std::byte * address, uint64_t bytes) {
        for (uint64_t at = 0; at < bytes; at += page) {
            static_cast<void>(*static_cast<volatile std::byte *>(address + at));
        }
    });
}

}  // namespace moe
