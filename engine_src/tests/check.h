// The smallest test macros that say what failed where. A test is a program: it ends with check::result().
#pragma once

#include <cstdio>
#include <exception>
#include <functional>

namespace check {

inline int & failures() {
    static int n = 0;
    return n;
}

inline void that(bool ok, const char * what, const char * file, int line) {
    if (!ok) {
        std::fprintf(stderr, "%s:%d: %s\n", file, line, what);
        ++failures();
    }
}

// Runs a named case; an exception that escapes it is a failure of that case only.
inline void run(const char * name, const std::function<void()> & body) {
    const int before = failures();
    try {
        body();
    } catch (const std::exception & e) {
        std::fprintf(stderr, "%s: %s\n", name, e.what());
        ++failures();
    }
    std::fprintf(stderr, "%s %s\n", failures() == before ? "ok  " : "FAIL", name);
}

inline int result() { return failures() == 0 ? 0 : 1; }

}  // namespace check

#define CHECK(condition) check::that((condition), #condition, __FILE__, __LINE__)
