#include "shard_files.h"

#include "aligned_memory.h"
#include "error.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace moe {

namespace {

constexpr uint64_t kVerifyBytes = 16 * kIoBlock;
constexpr uint64_t kStepBytes = uint64_t{1} << 20;
constexpr int kPoison = 0xA5;

}  // namespace

ShardFiles::ShardFiles(const std::vector<std::string> & paths, bool want_direct) {
    direct_ = want_direct;
    reason_ = want_direct ? "" : "buffered reads were asked for";
    try {
        for (const std::string & path : paths) {
            files_.push_back({path, open(path.c_str(), O_RDONLY | O_CLOEXEC), -1});
            if (files_.back().buffered < 0) {
                throw Error(ExitCode::io, path + ": " + std::strerror(errno));
            }
        }
        for (size_t i = 0; i < files_.size() && direct_; ++i) {
            direct_ = verify_direct(files_[i]);
        }
    } catch (...) {
        close_all();
        throw;
    }
}

ShardFiles::~ShardFiles() { close_all(); }

void ShardFiles::close_all() {
    for (File & file : files_) {
        if (file.buffered >= 0) {
            close(file.buffered);
        }
        if (file.direct >= 0) {
            close(file.direct);
        }
    }
}

// Opens the file for direct reads and compares one read from its middle with a buffered read of the same range.
bool ShardFiles::verify_direct(File & file) {
#ifdef O_DIRECT
    const int fd = open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
#else
    const int fd = -1;
    errno = ENOTSUP;
#endif
    if (fd < 0) {
        reason_ = file.path + ": cannot be opened for direct reads: " + std::strerror(errno);
        return false;
    }
    file.direct = fd;

    struct stat st {};
    if (fstat(fd, &st) != 0) {
        throw Error(ExitCode::io, file.path + ": " + std::strerror(errno));
    }
    const uint64_t size = static_cast<uint64_t>(st.st_size);
    const uint64_t offset = align_down(size / 2);
    const uint64_t bytes = std::min(kVerifyBytes, size - offset);

    // Poisoned differently, so that a read that "succeeds" without writing cannot look equal.
    AlignedMemory direct(kVerifyBytes);
    AlignedMemory buffered(kVerifyBytes);
    std::memset(direct.data(), kPoison, direct.size());
    std::memset(buffered.data(), ~kPoison, buffered.size());
    try {
        read_at(file, true, offset, bytes, align_up(bytes), direct.data());
    } catch (const Error & error) {
        reason_ = std::string("a direct read failed: ") + error.what();
        return false;
    }
    // The check must not leave more behind in the page cache than it read, and that only for a moment.
    posix_fadvise(file.buffered, 0, 0, POSIX_FADV_RANDOM);
    read_at(file, false, offset, bytes, bytes, buffered.data());
    posix_fadvise(file.buffered, static_cast<off_t>(offset), static_cast<off_t>(align_up(bytes)), POSIX_FADV_DONTNEED);
    posix_fadvise(file.buffered, 0, 0, POSIX_FADV_NORMAL);
    if (std::memcmp(direct.data(), buffered.data(), bytes) != 0) {
        reason_ = file.path + ": a direct read returned other bytes than a buffered one at offset " +
                  std::to_string(offset);
        return false;
    }
    reason_ = "direct reads equal buffered reads (" + std::to_string(bytes) + " bytes in mid-file compared)";
    return true;
}

// Reads until `wanted` bytes are there; asks for `asked`, of which the end of the file may cut off the rest.
// Returns the bytes asked from storage.
uint64_t ShardFiles::read_at(const File & file, bool direct, uint64_t offset, uint64_t wanted, uint64_t asked,
                             std::byte * dest) {
    uint64_t got = 0;
    while (got < wanted) {
        // A direct read may stop early at a place where it cannot be resumed; the rest then comes buffered.
        const bool resume_direct = direct && got % kIoBlock == 0;
        const int fd = resume_direct ? file.direct : file.buffered;
        const ssize_t n = pread(fd, dest + got, asked - got, static_cast<off_t>(offset + got));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            throw Error(ExitCode::io, file.path + ": cannot read " + std::to_string(wanted) + " bytes at offset " +
                                          std::to_string(offset) + ": " +
                                          (n < 0 ? std::strerror(errno) : "the file ends before them"));
        }
        got += static_cast<uint64_t>(n);
    }
    return asked;
}

uint64_t ShardFiles::begin(const ReadRequest & request) const {
    return direct_ ? align_down(request.offset) : request.offset;
}

uint64_t ShardFiles::read(const ReadRequest & request) const {
    const File & file = files_[request.shard];
    if (!direct_) {
        return read_at(file, false, request.offset, request.size, request.size, request.window + request.shift);
    }
    const uint64_t first = begin(request);
    const uint64_t natural_shift = request.offset - first;
    const uint64_t asked = read_at(file, true, first, natural_shift + request.size,
                                   align_up(natural_shift + request.size), request.window);
    if (natural_shift != request.shift) {
        std::memmove(request.window + request.shift, request.window + natural_shift, request.size);
    }
    return asked;
}

void ShardFiles::read_unaligned(uint32_t shard, uint64_t offset, uint64_t size, std::byte * dest) const {
    if (!direct_) {
        read_at(files_[shard], false, offset, size, size, dest);
        return;
    }
    AlignedMemory step(kStepBytes + kIoBlock);
    for (uint64_t done = 0; done < size;) {
        const uint64_t at = offset + done;
        const uint64_t n = std::min(kStepBytes - at % kIoBlock, size - done);
        read({shard, at, n, step.data(), at % kIoBlock});
        std::memcpy(dest + done, step.data() + at % kIoBlock, n);
        done += n;
    }
}

}  // namespace moe
