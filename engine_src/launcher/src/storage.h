// The file system that a directory is on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace launcher {

struct Storage {
    std::string path;                       // without links
    std::optional<std::string> filesystem;  // "ext4", "f2fs", "fuse"; empty: cannot be told
    bool fuse = false;                      // every read goes through another process
    int64_t size_bytes = 0;
    int64_t free_bytes = 0;  // for us
};

// Throws std::runtime_error for what is no directory.
Storage inspect_storage(const std::string & directory, const std::string & proc_root);

// Of a path without links, by the text of a mountinfo file; of mounts in the same place the last one counts. Where
// no mount contains the path (in a chroot) the one of the same `device`, "8:1".
std::optional<std::string> filesystem_of(const std::string & path, const std::string & device,
                                         const std::string & mountinfo);

}  // namespace launcher
