// The model's files, read slice by slice: past the page cache where that is possible and proven to work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace moe {

// Which part of which expert a read is for. Reading does not look at it: it is there for whoever observes the reads.
struct ReadTag {
    uint32_t layer = 0;
    uint32_t expert = 0;
    uint32_t part = 0;
};

// `size` bytes of the file at `offset`, to be found at window + shift afterwards. `window` is block-aligned
// and has room for the blocks that the range touches, and for shift + size bytes.
struct ReadRequest {
    uint32_t shard = 0;
    uint64_t offset = 0;
    uint64_t size = 0;
    std::byte * window = nullptr;
    uint64_t shift = 0;
    ReadTag tag{};
};

class ShardFiles {
public:
    // Opens all files. Direct reads are used only when they are asked for, when every file can be opened so,
    // and when a direct read yields the bytes of a buffered one: some file systems accept the flag and
    // return garbage. Throws Error(io) when a file cannot be opened at all.
    ShardFiles(const std::vector<std::string> & paths, bool want_direct);
    ~ShardFiles();
    ShardFiles(const ShardFiles &) = delete;
    ShardFiles & operator=(const ShardFiles &) = delete;

    bool direct() const { return direct_; }
    const std::string & reason() const { return reason_; }  // why not direct, or how it was verified

    // Where in the file the read of `request` begins: at a block under direct I/O.
    uint64_t begin(const ReadRequest & request) const;

    // Thread-safe. Returns the bytes asked from storage: whole blocks under direct I/O. Throws Error(io).
    uint64_t read(const ReadRequest & request) const;

    // The same for memory without alignment or room around it, in small steps. Thread-safe.
    void read_unaligned(uint32_t shard, uint64_t offset, uint64_t size, std::byte * dest) const;

private:
    struct File {
        std::string path;
        int buffered = -1;
        int direct = -1;
    };

    bool verify_direct(File & file);  // sets reason_
    static uint64_t read_at(const File & file, bool direct, uint64_t offset, uint64_t wanted, uint64_t asked,
                            std::byte * dest);
    void close_all();

    std::vector<File> files_;
    bool direct_ = false;
    std::string reason_;
};

}  // namespace moe
