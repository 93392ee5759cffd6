#include "args_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "errors.h"
#include "files.h"

namespace launcher {

namespace {

constexpr size_t most_bytes = 16 << 20;  // far more than the kernel would hand to a program

std::string read_whole(const std::string & path) {
    const UniqueFd fd = open_to_read(path);
    std::string text;
    char buffer[65536];
    while (fd) {
        const ssize_t got = read(fd.get(), buffer, sizeof buffer);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            break;
        }
        if (got == 0) {
            return text;
        }
        text.append(buffer, static_cast<size_t>(got));
        if (text.size() > most_bytes) {
            throw UsageError("--args-file " + path + " is larger than 16 MiB");
        }
    }
    throw UsageError("cannot read --args-file " + path + ": " + std::strerror(errno));
}

}  // namespace

std::vector<std::string> read_args(const std::vector<std::string> & args) {
    if (args.empty() || args[0] != "--args-file") {
        return args;
    }
    if (args.size() != 2) {
        throw UsageError("--args-file takes one file, which holds all other arguments");
    }
    const std::string text = read_whole(args[1]);
    if (text.empty() || text.back() != '\0') {
        throw UsageError("--args-file " + args[1] + " does not end with a NUL: it is not whole");
    }
    std::vector<std::string> found;
    for (size_t at = 0; at < text.size();) {
        const size_t end = text.find('\0', at);
        found.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return found;
}

}  // namespace launcher
