#include "page_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "files.h"
#include "json_writer.h"

namespace launcher {

namespace {

// To others the kernel says of every page that it is there.
bool may_know(const std::string & path, const struct stat & info) {
    return geteuid() == 0 || geteuid() == info.st_uid || access(path.c_str(), W_OK) == 0;
}

std::optional<int64_t> resident_in(int fd, int64_t offset, size_t bytes, size_t page_bytes) {
    void * const at = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(offset));
    if (at == MAP_FAILED) {
        return std::nullopt;
    }
    std::vector<unsigned char> pages((bytes + page_bytes - 1) / page_bytes);
    const bool told = mincore(at, bytes, pages.data()) == 0;
    munmap(at, bytes);
    if (!told) {
        return std::nullopt;
    }
    const auto there = std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; });
    return static_cast<int64_t>(there) * static_cast<int64_t>(page_bytes);
}

std::optional<int64_t> resident_bytes(int fd, int64_t size) {
    constexpr int64_t piece = 1 << 30;  // addresses are scarce on small devices
    const auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    int64_t total = 0;
    for (int64_t at = 0; at < size; at += piece) {
        const auto part = resident_in(fd, at, static_cast<size_t>(std::min(piece, size - at)), page_bytes);
        if (!part) {
            return std::nullopt;
        }
        total += *part;
    }
    return std::min(total, size);  // the last page may be used in part only
}

void add(std::optional<int64_t> & total, std::optional<int64_t> more) {
    total = total && more ? std::optional(*total + *more) : std::nullopt;
}

}  // namespace

PageCache evict_from_page_cache(const std::vector<std::string> & paths) {
    PageCache cache{0, 0};
    for (const std::string & path : paths) {
        const UniqueFd fd = open_to_read(path);
        struct stat info {};
        if (!fd || fstat(fd.get(), &info) != 0) {
            throw std::runtime_error("cannot evict " + path + " from the page cache: " + std::strerror(errno));
        }
        if (!S_ISREG(info.st_mode)) {
            throw std::runtime_error("cannot evict " + path + " from the page cache: it is not a regular file");
        }
        const bool told = may_know(path, info);
        add(cache.before_bytes, told ? resident_bytes(fd.get(), info.st_size) : std::nullopt);
        fdatasync(fd.get());  // what is not written yet would stay; not every file system can
        posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
        add(cache.after_bytes, told ? resident_bytes(fd.get(), info.st_size) : std::nullopt);
    }
    return cache;
}

void write_json(JsonWriter & json, const PageCache & cache) {
    json.begin_object().field("before_bytes", cache.before_bytes).field("after_bytes", cache.after_bytes).end_object();
}

}  // namespace launcher
