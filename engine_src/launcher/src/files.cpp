#include "files.h"

#include <dirent.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <memory>

namespace launcher {

namespace {
constexpr std::string_view white_space = " \t\r\n";
}

UniqueFd open_to_read(const std::string & path) {
    // Non-blocking, so that a FIFO in a made-up device cannot hang the launcher.
    return UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

std::string_view read_again(int fd, char * buffer, size_t buffer_bytes) {
    if (fd < 0) {
        return {};
    }
    ssize_t got = 0;
    do {
        got = pread(fd, buffer, buffer_bytes, 0);
    } while (got < 0 && errno == EINTR);
    return got > 0 ? std::string_view(buffer, static_cast<size_t>(got)) : std::string_view();
}

std::optional<std::string> read_text(const std::string & path) {
    const UniqueFd fd = open_to_read(path);
    if (!fd) {
        return std::nullopt;
    }
    std::string text(65536, '\0');
    size_t used = 0;
    while (used < text.size()) {
        const ssize_t got = read(fd.get(), text.data() + used, text.size() - used);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return std::nullopt;
        }
        if (got == 0) {
            break;
        }
        used += static_cast<size_t>(got);
    }
    text.resize(used);
    return text;
}

std::string trim(std::string_view text) {
    const size_t first = text.find_first_not_of(white_space);
    if (first == std::string_view::npos) {
        return {};
    }
    return std::string(text.substr(first, text.find_last_not_of(white_space) - first + 1));
}

std::optional<std::string> read_value(const std::string & path) {
    const auto text = read_text(path);
    if (!text) {
        return std::nullopt;
    }
    std::string value = trim(*text);
    if (value.empty()) {
        return std::nullopt;
    }
    return value;
}

std::optional<int64_t> parse_int(std::string_view text) {
    const size_t first = text.find_first_not_of(white_space);
    if (first == std::string_view::npos) {
        return std::nullopt;
    }
    int64_t value = 0;
    const char * end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data() + first, end, value);
    if (parsed.ec != std::errc()) {
        return std::nullopt;
    }
    return value;
}

std::optional<int64_t> read_int(const std::string & path) {
    const auto text = read_text(path);
    return text ? parse_int(*text) : std::nullopt;
}

std::optional<int64_t> int_after(std::string_view text, std::string_view key, size_t & from) {
    const size_t at = text.find(key, from);
    if (at == std::string_view::npos) {
        return std::nullopt;
    }
    from = at + key.size();
    return parse_int(text.substr(from));
}

std::optional<int64_t> int_after(std::string_view text, std::string_view key) {
    size_t from = 0;
    return int_after(text, key, from);
}

std::optional<double> decimal_after(std::string_view text, std::string_view key) {
    const size_t at = text.find(key);
    if (at == std::string_view::npos) {
        return std::nullopt;
    }
    char number[32];  // strtod needs a terminated text, which a view is not
    const std::string_view rest = text.substr(at + key.size(), sizeof number - 1);
    rest.copy(number, rest.size());
    number[rest.size()] = '\0';
    char * end = nullptr;
    const double value = std::strtod(number, &end);
    if (end == number) {
        return std::nullopt;
    }
    return value;
}

std::vector<std::string> list_names(const std::string & directory, std::string_view prefix) {
    std::vector<std::string> names;
    const std::unique_ptr<DIR, int (*)(DIR *)> open_dir(opendir(directory.c_str()), &closedir);
    if (!open_dir) {
        return names;
    }
    while (const dirent * entry = readdir(open_dir.get())) {
        const std::string name = entry->d_name;
        if (name != "." && name != ".." && name.compare(0, prefix.size(), prefix) == 0) {
            names.push_back(name);
        }
    }
    std::sort(names.begin(), names.end(), [](const std::string & a, const std::string & b) {
        return a.size() != b.size() ? a.size() < b.size() : a < b;
    });
    return names;
}

}  // namespace launcher
