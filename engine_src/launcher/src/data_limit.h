// RLIMIT_DATA, and whether this system means it.
#pragma once

#include <cstdint>
#include <string>

namespace launcher {

struct LimitTest {
    bool enforced = false;
    std::string detail;  // what was tried and what came of it
};

// Sets soft and hard limit of the calling process; 0 or errno. Safe between fork and exec.
int set_data_limit(int64_t bytes);

// In a child: what can be mapped without the limit must fail with it. Kernels before 4.7, some containers and
// emulated kernels accept the limit and ignore it.
LimitTest test_data_limit(int64_t bytes);

}  // namespace launcher
