#include "process.h"

#include "error.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <string>
#include <vector>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace moe {

namespace {

// llama.cpp's workers keep their scratch on the heap; 1 MiB is several times what they were seen to use, and
// the usual 8 MiB of each thread would count against the memory limit.
constexpr size_t small_stack = size_t{1} << 20;

// The number after `name` in a file of lines "name number" or "name: number".
std::optional<uint64_t> number_after(const std::string & path, const std::string & name) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
        const char next = line.size() > name.size() ? line[name.size()] : '\0';
        if (line.compare(0, name.size(), name) == 0 && (next == ' ' || next == ':')) {
            return std::strtoull(line.c_str() + name.size() + 1, nullptr, 10);
        }
    }
    return std::nullopt;
}

// A file of one number; empty when there is none, or the word "max".
std::optional<uint64_t> number_in(const std::string & path) {
    std::ifstream file(path);
    uint64_t number = 0;
    return file >> number ? std::optional<uint64_t>(number) : std::nullopt;
}

std::optional<uint64_t> smaller(std::optional<uint64_t> a, std::optional<uint64_t> b) {
    return a && b ? std::min(a, b) : a ? a : b;
}

std::optional<uint64_t> kib(std::optional<uint64_t> number) {
    return number ? std::optional<uint64_t>(*number * 1024) : std::nullopt;
}

struct CgroupFiles {
    std::vector<const char *> limits;
    const char * usage;
    std::vector<const char *> page_cache;  // in memory.stat
};

// Beyond memory.high a group is slowed down until it is as good as stopped, so that is a limit too.
const CgroupFiles cgroup_v2 = {{"memory.max", "memory.high"}, "memory.current", {"inactive_file", "active_file"}};
const CgroupFiles cgroup_v1 = {
    {"memory.limit_in_bytes"}, "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};

// Version 1 has no word for "unlimited", only the largest number of pages.
constexpr uint64_t unlimited = uint64_t{1} << 62;

std::optional<uint64_t> group_left_bytes(const std::string & group, const CgroupFiles & files) {
    std::optional<uint64_t> limit;
    for (const char * name : files.limits) {
        limit = smaller(limit, number_in(group + "/" + name));
    }
    const std::optional<uint64_t> usage = number_in(group + "/" + files.usage);
    if (!limit || !usage || *limit >= unlimited) {
        return std::nullopt;
    }
    uint64_t page_cache = 0;
    for (const char * name : files.page_cache) {
        page_cache += number_after(group + "/memory.stat", name).value_or(0);
    }
    const uint64_t used = *usage - std::min(*usage, page_cache);
    return *limit - std::min(*limit, used);
}

// Somebody inside llama.cpp catches std::bad_alloc and calls the file unreadable; under a memory limit the truth
// is told here instead, without allocating. That something did not fit is all that is known by now.
[[noreturn]] void on_out_of_memory() {
    const unsigned long long allowed = data_limit().value_or(0);
    char line[160];
    const int length = std::snprintf(
        line, sizeof line, "moe-engine: error: needs %llu bytes of anonymous memory, allowed %llu (RLIMIT_DATA)\n",
        allowed + 1, allowed);
    const ssize_t ignored = write(STDERR_FILENO, line, static_cast<size_t>(length));
    static_cast<void>(ignored);
    _exit(static_cast<int>(ExitCode::memory));
}

}  // namespace

void prepare_process() {
    // A closed standard stream's number would go to the next file opened, and the text into that file. Opened for
    // reading, so that writing to it fails as it should.
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) < 0) {
            break;  // no /dev here: nothing to be done
        }
    }
    if (data_limit()) {
        std::set_new_handler(on_out_of_memory);
    }
    // A reader of our output that goes away, or a file beyond its limit, is an I/O error with a message, not a silent death.
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
    // An abort inside ggml must not start a debugger to print a stack trace.
    setenv("GGML_NO_BACKTRACE", "1", 0);
#ifdef __GLIBC__
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_THRESHOLD, 256 * 1024);
    mallopt(M_TRIM_THRESHOLD, 256 * 1024);
#endif
#if defined(__linux__) && !defined(__ANDROID__) && !defined(MOE_SANITIZED)
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) == 0) {
        pthread_attr_setstacksize(&attributes, small_stack);
        pthread_setattr_default_np(&attributes);
        pthread_attr_destroy(&attributes);
    }
#endif
}

uint64_t thread_stack_bytes() {
    size_t size = size_t{8} << 20;
#if defined(__linux__) && !defined(__ANDROID__)
    pthread_attr_t attributes;
    if (pthread_getattr_default_np(&attributes) == 0) {
        pthread_attr_getstacksize(&attributes, &size);
        pthread_attr_destroy(&attributes);
    }
#endif
    return size;
}

std::optional<uint64_t> data_bytes() { return kib(number_after("/proc/self/status", "VmData")); }

std::optional<uint64_t> anon_resident_bytes() {
    // statm: total, resident, resident that is file or shared. One short line, cheap enough for every token.
    std::FILE * file = std::fopen("/proc/self/statm", "re");
    if (!file) {
        return std::nullopt;
    }
    unsigned long long total = 0;
    unsigned long long resident = 0;
    unsigned long long shared = 0;
    const int fields = std::fscanf(file, "%llu %llu %llu", &total, &resident, &shared);
    std::fclose(file);
    if (fields != 3) {
        return std::nullopt;
    }
    return (resident - std::min(resident, shared)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

std::optional<uint64_t> data_limit() {
    rlimit limit{};
    if (getrlimit(RLIMIT_DATA, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        return std::nullopt;
    }
    return limit.rlim_cur;
}

std::optional<uint64_t> cgroup_left_bytes(const std::string & root) {
    std::optional<uint64_t> left;
    std::ifstream groups(root + "/proc/self/cgroup");
    std::string line;  // number:controllers:/path, without controllers in version 2
    while (std::getline(groups, line)) {
        const size_t controllers = line.find(':') + 1;
        const size_t path = line.find(':', controllers) + 1;
        if (controllers == 0 || path == 0) {
            continue;
        }
        const bool v2 = path == controllers + 1;
        if (!v2 && line.compare(controllers, path - 1 - controllers, "memory") != 0) {
            continue;
        }
        // Every group above limits too. Inside a container the path may be that of the host, of which only the top
        // exists here, and that is the container's own group.
        std::string group = line.substr(path);
        for (;;) {
            group.erase(group.find_last_not_of('/') + 1);
            left = smaller(left, group_left_bytes(root + "/sys/fs/cgroup" + (v2 ? "" : "/memory") + group,
                                                  v2 ? cgroup_v2 : cgroup_v1));
            if (group.empty()) {
                break;
            }
            group.erase(group.rfind('/') + 1);
        }
    }
    return left;
}

std::optional<uint64_t> available_memory_bytes(const std::string & root) {
    const std::optional<uint64_t> machine = kib(number_after(root + "/proc/meminfo", "MemAvailable"));
    return machine ? smaller(machine, cgroup_left_bytes(root)) : std::nullopt;
}

void write_stdout(const std::string & bytes) {
    for (size_t done = 0; done < bytes.size();) {
        const ssize_t n = write(STDOUT_FILENO, bytes.data() + done, bytes.size() - done);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            throw Error(ExitCode::io, std::string("cannot write to standard output: ") + std::strerror(errno));
        }
        done += static_cast<size_t>(n);
    }
}

std::string read_file(const std::string & path, const char * what, uint64_t most) {
    const auto fail = [&] {
        throw Error(ExitCode::io, std::string("cannot read ") + what + " file '" + path + "': " + std::strerror(errno));
    };
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        fail();
    }
    std::string text;
    char buffer[65536];
    ssize_t n = 0;
    while ((n = read(fd, buffer, std::min<uint64_t>(sizeof buffer, most - text.size()))) != 0) {
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            const int error = errno;
            close(fd);
            errno = error;
            fail();
        }
        text.append(buffer, static_cast<size_t>(n));
    }
    close(fd);
    return text;
}

}  // namespace moe
