#include "file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <sstream>

#include "clocks.h"
#include "errors.h"
#include "files.h"

namespace launcher {

namespace {

// Looking at a lock takes it for an instant; on a busy device that can be a few time slices. Tries are counted, not
// time: who was not running for a while has not looked meanwhile.
constexpr int max_tries = 31;
constexpr int64_t retry_ns = 10 * 1000000LL;
// Never waits, whatever lies there, and does not follow a link that somebody may have put in its place.
constexpr int open_flags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;

[[noreturn]] void fail(const std::string & path, const std::string & why) {
    throw OutputError("cannot use " + path + " as a lock: " + why);
}

[[noreturn]] void fail(const std::string & path, int error) {
    fail(path, error == ELOOP ? "it is a symbolic link" : std::strerror(error));
}

struct stat checked(const std::string & path, const UniqueFd & fd) {
    struct stat info {};
    if (fstat(fd.get(), &info) != 0) {
        fail(path, errno);
    }
    if (!S_ISREG(info.st_mode)) {
        fail(path, "it is not a regular file");
    }
    if (info.st_nlink > 1) {
        fail(path, "the file has other names, too");  // and what is written into it would change them
    }
    return info;
}

UniqueFd open_or_make(const std::string & path) {
    for (int attempt = 0; attempt < 100; ++attempt) {
        // Opened first without making it: in a directory like /tmp the kernel refuses to "make" a file that is there
        // and belongs to another user (fs.protected_regular).
        UniqueFd fd(open(path.c_str(), O_RDWR | open_flags));
        if (!fd && errno == ENOENT) {
            const mode_t mask = umask(0);  // whoever comes later may be another user
            fd.reset(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | open_flags, 0666));
            const int error = errno;
            umask(mask);
            errno = error;
        }
        if (fd) {
            return fd;
        }
        if (errno != EEXIST) {
            fail(path, errno);
        }
    }
    fail(path, "it comes and goes");
}

bool is_same_file(const struct stat & one, const struct stat & other) {
    return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

// fdinfo has a line "lock: 1: FLOCK ADVISORY WRITE ..." for each lock of the open file.
bool is_lock_of(const std::string & process_dir, const std::string & fd) {
    std::istringstream lines(read_text(process_dir + "/fdinfo/" + fd).value_or(""));
    for (std::string line; std::getline(lines, line);) {
        if (line.rfind("lock:", 0) == 0 && line.find("FLOCK") != std::string::npos &&
            line.find("WRITE") != std::string::npos) {
            return true;
        }
    }
    return false;
}

bool holds(const std::string & process_dir, const struct stat & file) {
    for (const std::string & fd : list_names(process_dir + "/fd", "")) {
        struct stat info {};
        if (stat((process_dir + "/fd/" + fd).c_str(), &info) == 0 && is_same_file(info, file) &&
            is_lock_of(process_dir, fd)) {
            return true;
        }
    }
    return false;
}

}  // namespace

std::optional<FileLock> FileLock::take(const std::string & path) {
    for (int tries = 1;; ++tries) {
        UniqueFd fd = open_or_make(path);
        const struct stat opened = checked(path, fd);
        if (flock(fd.get(), LOCK_EX | LOCK_NB) == 0) {
            struct stat named {};
            if (lstat(path.c_str(), &named) == 0 && is_same_file(named, opened)) {
                return FileLock(std::move(fd));
            }
            // Removed between the two, as cleaners of /tmp do: the next one would lock another file.
        } else if (errno != EWOULDBLOCK && errno != EINTR) {
            fail(path, errno);
        }
        if (tries == max_tries) {
            return std::nullopt;
        }
        sleep_ns(retry_ns);
    }
}

UniqueFd open_lock(const std::string & path) {
    UniqueFd fd(open(path.c_str(), O_RDONLY | open_flags));
    if (!fd) {
        if (errno != ENOENT && errno != ENOTDIR) {
            fail(path, errno);
        }
        return fd;
    }
    checked(path, fd);
    return fd;
}

bool is_locked(int fd) {
    // Shared: those who look do not take each other for a holder.
    if (flock(fd, LOCK_SH | LOCK_NB) != 0) {
        return errno == EWOULDBLOCK;
    }
    flock(fd, LOCK_UN);
    return false;
}

bool is_locked(const std::string & path) {
    const UniqueFd fd = open_lock(path);
    return fd && is_locked(fd.get());
}

std::vector<pid_t> lock_holders(const std::string & path) {
    std::vector<pid_t> holders;
    const UniqueFd fd = open_lock(path);
    struct stat file {};
    if (!fd || fstat(fd.get(), &file) != 0) {
        return holders;
    }
    for (const std::string & name : list_names("/proc", "")) {
        const auto pid = parse_int(name);
        if (pid && *pid != getpid() && holds("/proc/" + name, file)) {
            holders.push_back(static_cast<pid_t>(*pid));
        }
    }
    return holders;
}

}  // namespace launcher
