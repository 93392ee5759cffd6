// Anonymous memory in whole pages, aligned for direct I/O.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moe {

// Direct I/O wants file offset, length and address in multiples of the device's logical block. 4096 satisfies
// every block size in use, and is the page size that mmap aligns to at the least.
constexpr uint64_t kIoBlock = 4096;

constexpr uint64_t align_down(uint64_t n) { return n / kIoBlock * kIoBlock; }
constexpr uint64_t align_up(uint64_t n) { return align_down(n + kIoBlock - 1); }

class AlignedMemory {
public:
    AlignedMemory() = default;
    explicit AlignedMemory(size_t bytes);  // zero-filled; throws Error(memory)
    ~AlignedMemory();
    AlignedMemory(AlignedMemory && other) noexcept;
    AlignedMemory & operator=(AlignedMemory && other) noexcept;
    AlignedMemory(const AlignedMemory &) = delete;
    AlignedMemory & operator=(const AlignedMemory &) = delete;

    // Takes all pages now. Untouched ones are only taken when they are used: too late to find out that there are none.
    void commit();

    std::byte * data() const { return data_; }
    size_t size() const { return size_; }

private:
    std::byte * data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace moe
