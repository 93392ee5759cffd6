#include "digest.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "../../src/sha256.h"
#include "files.h"
#include "json_writer.h"

namespace launcher {

namespace {

using Stop = std::function<bool()>;

struct Stopped {};

struct FileDigest {
    std::string path;
    std::optional<int64_t> bytes;  // empty: there is no such file
    std::optional<int64_t> mtime_ns;
    std::optional<int64_t> inode;
    std::optional<std::string> sha256;
};

[[noreturn]] void fail(const std::string & path, const std::string & why) {
    throw std::runtime_error("cannot read " + path + ": " + why);
}

int64_t mtime_ns(const struct stat & info) {
    return static_cast<int64_t>(info.st_mtim.tv_sec) * 1000000000 + info.st_mtim.tv_nsec;
}

bool is_unchanged(const struct stat & before, const struct stat & after) {
    return before.st_size == after.st_size && mtime_ns(before) == mtime_ns(after);
}

std::string sha256_of(const std::string & path, int fd, const Stop & stop) {
    constexpr size_t piece = 1 << 20;
    std::string buffer(piece, '\0');
    moe::Sha256 sum;
    for (off_t at = 0;;) {
        if (stop()) {
            throw Stopped();
        }
        const ssize_t got = pread(fd, buffer.data(), buffer.size(), at);
        if (got < 0 && errno != EINTR) {
            fail(path, std::strerror(errno));
        }
        if (got == 0) {
            return sum.hex();
        }
        if (got > 0) {
            sum.update(buffer.data(), static_cast<size_t>(got));
            at += got;
        }
    }
}

FileDigest describe(const std::string & path, const struct stat & info) {
    return {path, info.st_size, mtime_ns(info), static_cast<int64_t>(info.st_ino), std::nullopt};
}

FileDigest read_file(const std::string & path, const Stop & stop) {
    const UniqueFd fd = open_to_read(path);
    if (!fd) {
        fail(path, std::strerror(errno));
    }
    posix_fadvise(fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
    constexpr int attempts = 3;
    for (int attempt = 0; attempt < attempts; ++attempt) {
        struct stat before {};
        struct stat after {};
        if (fstat(fd.get(), &before) != 0 || !S_ISREG(before.st_mode)) {
            fail(path, "it is not a regular file");
        }
        FileDigest file = describe(path, before);
        file.sha256 = sha256_of(path, fd.get(), stop);
        if (fstat(fd.get(), &after) == 0 && is_unchanged(before, after)) {
            return file;
        }
    }
    fail(path, "it changes meanwhile");
}

class Answer {
public:
    Answer(bool with_sha256, const Stop & stop) : with_sha256_(with_sha256), stop_(stop) {
        json_.begin_object().key("files").begin_array();
    }

    void add_path(const std::string & path) {
        struct stat info {};
        if (stat(path.c_str(), &info) != 0) {
            if (errno != ENOENT && errno != ENOTDIR) {
                fail(path, std::strerror(errno));
            }
            write({path, {}, {}, {}, {}});
        } else if (S_ISDIR(info.st_mode)) {
            add_directory(path);
        } else if (S_ISREG(info.st_mode)) {
            add_file(path, info);
        } else {
            fail(path, "it is not a regular file");
        }
    }

    std::string text() {
        json_.end_array().end_object();
        return json_.text() + "\n";
    }

private:
    void add_directory(const std::string & directory) {
        if (!UniqueFd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC))) {
            fail(directory, std::strerror(errno));
        }
        for (const std::string & name : list_names(directory, "")) {
            const std::string path = directory + "/" + name;
            struct stat info {};
            if (lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
                add_file(path, info);
            }
        }
    }

    void add_file(const std::string & path, const struct stat & info) {
        write(with_sha256_ ? read_file(path, stop_) : describe(path, info));
    }

    void write(const FileDigest & file) {
        json_.begin_object().field("path", file.path).field("bytes", file.bytes).field("mtime_ns", file.mtime_ns);
        json_.field("inode", file.inode).field("sha256", file.sha256).end_object();
    }

    JsonWriter json_;
    const bool with_sha256_;
    const Stop & stop_;
};

}  // namespace

std::optional<std::string> digest_json(const Options & options, const Stop & stop) {
    Answer answer(!options.no_sha256, stop);
    try {
        for (const std::string & path : options.paths) {
            answer.add_path(path);
        }
    } catch (const Stopped &) {
        return std::nullopt;
    }
    return answer.text();
}

}  // namespace launcher
