#include "data_limit.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace launcher {

namespace {

enum Outcome : int { enforced, ignored, control_failed, limit_refused, other_error };

// Writable and private, which is what the limit counts; never touched, so it costs no memory. Not reserved, so
// that the system's own overcommit rule does not refuse what only the limit should refuse.
bool can_map(size_t bytes) {
    void * const at =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        return false;
    }
    munmap(at, bytes);
    return true;
}

Outcome try_in_child(int64_t bytes) {
    constexpr size_t beyond = 1 << 20;
    const size_t size = static_cast<size_t>(bytes) + beyond;
    if (!can_map(size)) {
        return control_failed;
    }
    if (set_data_limit(bytes) != 0) {
        return limit_refused;
    }
    errno = 0;
    if (can_map(size)) {
        return ignored;
    }
    return errno == ENOMEM ? enforced : other_error;
}

}  // namespace

int set_data_limit(int64_t bytes) {
    rlimit limit{};
    limit.rlim_cur = static_cast<rlim_t>(bytes);
    limit.rlim_max = static_cast<rlim_t>(bytes);
    return setrlimit(RLIMIT_DATA, &limit) == 0 ? 0 : errno;
}

LimitTest test_data_limit(int64_t bytes) {
    const pid_t child = fork();
    if (child < 0) {
        return {false, std::string("self-test could not fork: ") + std::strerror(errno)};
    }
    if (child == 0) {
        _exit(try_in_child(bytes));
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) {
            return {false, std::string("self-test lost its child: ") + std::strerror(errno)};
        }
    }
    const std::string limit = std::to_string(bytes) + " bytes";
    if (!WIFEXITED(status)) {
        return {false, "self-test child ended by signal " + std::to_string(WTERMSIG(status))};
    }
    switch (WEXITSTATUS(status)) {
        case enforced: return {true, "a mapping beyond " + limit + " fails, as it must"};
        case ignored: return {false, "a mapping beyond " + limit + " succeeds: RLIMIT_DATA is ignored here"};
        case control_failed: return {false, "cannot tell: " + limit + " cannot be mapped even without the limit"};
        case limit_refused: return {false, "RLIMIT_DATA cannot be set to " + limit};
        default: return {false, "a mapping beyond " + limit + " fails, but not for want of memory"};
    }
}

}  // namespace launcher
