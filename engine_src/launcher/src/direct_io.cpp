#include "direct_io.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "aligned_buffer.h"
#include "clocks.h"
#include "unique_fd.h"

namespace launcher {

namespace {

constexpr size_t file_bytes = 1 << 20;

// Other bytes each time, so that no earlier file on the same blocks can pass for this one.
void fill_with_known_bytes(unsigned char * at) {
    uint64_t state = static_cast<uint64_t>(clock_ns(CLOCK_MONOTONIC)) | 1;
    for (size_t i = 0; i < file_bytes; i += sizeof state) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        std::memcpy(at + i, &state, sizeof state);
    }
}

// 0 or errno.
int write_whole(int fd, const unsigned char * from) {
    for (size_t done = 0; done < file_bytes;) {
        const ssize_t wrote = pwrite(fd, from + done, file_bytes - done, static_cast<off_t>(done));
        if (wrote < 0 && errno != EINTR) {
            return errno;
        }
        done += wrote > 0 ? static_cast<size_t>(wrote) : 0;
    }
    return fdatasync(fd) == 0 ? 0 : errno;
}

// Empty, or what is wrong.
std::string read_and_compare(int fd, unsigned char * into, const unsigned char * known) {
    for (size_t i = 0; i < file_bytes; ++i) {
        into[i] = static_cast<unsigned char>(~known[i]);  // wrong in every byte that is not read
    }
    ssize_t got = 0;
    do {
        got = pread(fd, into, file_bytes, 0);
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        return std::strerror(errno);
    }
    if (got != static_cast<ssize_t>(file_bytes)) {
        return "only " + std::to_string(got) + " of " + std::to_string(file_bytes) + " bytes came";
    }
    size_t wrong = 0;
    size_t untouched = 0;
    for (size_t i = 0; i < file_bytes; ++i) {
        wrong += into[i] != known[i] ? 1 : 0;
        untouched += into[i] == static_cast<unsigned char>(~known[i]) ? 1 : 0;
    }
    if (untouched == file_bytes) {
        return "success was reported, and the buffer left untouched";
    }
    return wrong == 0 ? "" : std::to_string(wrong) + " bytes differ from what was written";
}

}  // namespace

DirectIo test_direct_io(const std::string & directory) {
    DirectIo result;
    const auto untried = [&](const std::string & why) {
        result.reason = why;
        return result;
    };
    const std::string path = directory + "/.moe-launcher-direct-" + std::to_string(getpid());
    const UniqueFd written(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!written) {
        return untried(std::string("cannot make a file here: ") + std::strerror(errno));
    }
    result.writable = true;
    const UniqueFd buffered(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    const int buffered_error = errno;
    const UniqueFd direct(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
    const int direct_error = errno;
    unlink(path.c_str());  // at once: whatever happens, nothing stays
    if (!buffered) {
        return untried(std::string("cannot open the file just made: ") + std::strerror(buffered_error));
    }
    const AlignedBuffer known(file_bytes);
    const AlignedBuffer read(file_bytes);
    if (!known || !read) {
        return untried("no memory");
    }
    fill_with_known_bytes(known.get());
    if (const int error = write_whole(written.get(), known.get())) {
        return untried(std::string("cannot write a file here: ") + std::strerror(error));
    }
    posix_fadvise(written.get(), 0, 0, POSIX_FADV_DONTNEED);  // from storage, not from what we have just written
    result.works = false;
    if (!direct) {
        result.reason = std::string("the file system refuses O_DIRECT: ") + std::strerror(direct_error);
        return result;
    }
    std::string fault = read_and_compare(direct.get(), read.get(), known.get());
    if (!fault.empty()) {
        result.reason = "a direct read went wrong: " + fault;
        return result;
    }
    fault = read_and_compare(buffered.get(), read.get(), known.get());
    if (!fault.empty()) {
        result.reason = "a buffered read went wrong: " + fault;
        return result;
    }
    result.works = true;
    return result;
}

}  // namespace launcher
