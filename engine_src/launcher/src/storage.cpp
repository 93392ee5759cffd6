#include "storage.h"

#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>

namespace launcher {

namespace {

// mountinfo writes a space as \040, and three more likewise.
std::string unescaped(const std::string & text) {
    std::string plain;
    for (size_t at = 0; at < text.size(); ++at) {
        const std::string digits = text.substr(at + 1, 3);
        if (text[at] == '\\' && digits.size() == 3 && digits.find_first_not_of("01234567") == std::string::npos) {
            plain += static_cast<char>(std::stoi(digits, nullptr, 8));
            at += 3;
        } else {
            plain += text[at];
        }
    }
    return plain;
}

bool contains(const std::string & directory, const std::string & path) {
    return directory == "/" || (path + "/").compare(0, directory.size() + 1, directory + "/") == 0;
}

std::string whole_text(const std::string & path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

}  // namespace

std::optional<std::string> filesystem_of(const std::string & path, const std::string & device,
                                         const std::string & mountinfo) {
    std::optional<std::string> containing;
    std::optional<std::string> same_device;
    size_t longest = 0;
    std::istringstream lines(mountinfo);
    for (std::string line; std::getline(lines, line);) {
        // "35 31 0:32 ROOT POINT OPTIONS [optional]... - TYPE SOURCE SUPER_OPTIONS", see proc(5)
        const size_t split = line.find(" - ");
        if (split == std::string::npos) {
            continue;
        }
        std::istringstream place(line.substr(0, split));
        std::istringstream what(line.substr(split + 3));
        std::string skipped, number, point, type;
        place >> skipped >> skipped >> number >> skipped >> point;
        what >> type;
        point = unescaped(point);
        if (contains(point, path) && point.size() >= longest) {
            longest = point.size();
            containing = type;
        }
        if (number == device) {
            same_device = type;
        }
    }
    return containing ? containing : same_device;
}

Storage inspect_storage(const std::string & directory, const std::string & proc_root) {
    const std::unique_ptr<char, void (*)(void *)> resolved(realpath(directory.c_str(), nullptr), &std::free);
    struct stat info {};
    struct statfs numbers {};
    if (!resolved || stat(resolved.get(), &info) != 0 || statfs(resolved.get(), &numbers) != 0) {
        throw std::runtime_error("cannot inspect the directory " + directory + ": " + std::strerror(errno));
    }
    if (!S_ISDIR(info.st_mode)) {
        throw std::runtime_error("cannot inspect " + directory + ": it is not a directory");
    }
    constexpr int64_t fuse_magic = 0x65735546;
    const std::string device = std::to_string(major(info.st_dev)) + ":" + std::to_string(minor(info.st_dev));
    Storage storage;
    storage.path = resolved.get();
    storage.filesystem = filesystem_of(storage.path, device, whole_text(proc_root + "/self/mountinfo"));
    storage.fuse = static_cast<int64_t>(numbers.f_type) == fuse_magic ||
                   storage.filesystem.value_or("").rfind("fuse", 0) == 0;
    const auto block_bytes = static_cast<int64_t>(numbers.f_frsize != 0 ? numbers.f_frsize : numbers.f_bsize);
    storage.size_bytes = static_cast<int64_t>(numbers.f_blocks) * block_bytes;
    storage.free_bytes = static_cast<int64_t>(numbers.f_bavail) * block_bytes;
    return storage;
}

}  // namespace launcher
