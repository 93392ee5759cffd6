// Files whose every range looks different from its neighbours, so that a read from the wrong place is noticed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

inline std::vector<char> pattern(size_t n) {
    std::vector<char> bytes(n);
    uint32_t state = 1;
    for (char & b : bytes) {
        state = state * 1664525U + 1013904223U;
        b = static_cast<char>(state >> 24);
    }
    return bytes;
}

inline void write_file(const std::string & path, const std::vector<char> & bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}
