// SHA-256 (FIPS 180-4), fed piecemeal.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace moe {

class Sha256 {
public:
    Sha256();

    void update(const void * data, size_t size);

    // Lower-case hex of everything fed so far; further updates continue from the same state.
    std::string hex() const;

private:
    void compress(const uint8_t * block);

    std::array<uint32_t, 8> state_;
    std::array<uint8_t, 64> block_{};
    size_t fill_ = 0;
    uint64_t total_ = 0;
};

}  // namespace moe
