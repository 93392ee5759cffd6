// Page-aligned memory, as direct reads demand.
#pragma once

#include <sys/mman.h>

#include <cstddef>

namespace launcher {

class AlignedBuffer {
public:
    explicit AlignedBuffer(size_t bytes)
        : bytes_(bytes), at_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
    AlignedBuffer(const AlignedBuffer &) = delete;
    AlignedBuffer & operator=(const AlignedBuffer &) = delete;
    ~AlignedBuffer() {
        if (*this) {
            munmap(at_, bytes_);
        }
    }
    explicit operator bool() const { return at_ != MAP_FAILED; }
    unsigned char * get() const { return static_cast<unsigned char *>(at_); }

private:
    size_t bytes_;
    void * at_;
};

}  // namespace launcher
