#include "aligned_memory.h"

#include "error.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace moe {

AlignedMemory::AlignedMemory(size_t bytes) : size_(bytes) {
    if (bytes == 0) {
        return;
    }
    void * p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        throw Error(ExitCode::memory, "cannot reserve " + std::to_string(bytes) + " bytes: " + std::strerror(errno));
    }
#ifdef MADV_HUGEPAGE
    // Expert slots are megabytes, read from end to end. With small pages direct reads come in at half the rate (each page is
    // a segment of its own to the device) and a tenth of computing goes into address translation (docs/paging.md). A
    // kernel without huge pages says no, which changes nothing.
    madvise(p, bytes, MADV_HUGEPAGE);
#endif
    data_ = static_cast<std::byte *>(p);
}

AlignedMemory::~AlignedMemory() {
    if (data_ != nullptr) {
        munmap(data_, size_);
    }
}

void AlignedMemory::commit() {
    for (size_t at = 0; at < size_; at += kIoBlock) {
        static_cast<volatile std::byte *>(data_)[at] = std::byte{0};
    }
}

AlignedMemory::AlignedMemory(AlignedMemory && other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

AlignedMemory & AlignedMemory::operator=(AlignedMemory && other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

}  // namespace moe
