#include "result_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "errors.h"

namespace launcher {

namespace {

constexpr const char * final_name = "result.json";
constexpr const char * temporary_name = ".result.json.tmp";
constexpr off_t reserved_bytes = 256 * 1024;  // a long command line and a hundred sensors fit

[[noreturn]] void fail(const std::string & doing, const std::string & path) {
    throw OutputError("cannot " + doing + " " + path + ": " + std::strerror(errno));
}

}  // namespace

UniqueFd open_output_dir(const std::string & dir) {
    for (size_t at = dir.find('/', 1); at != std::string::npos; at = dir.find('/', at + 1)) {
        mkdir(dir.substr(0, at).c_str(), 0777);  // whatever went wrong shows below
    }
    if (mkdir(dir.c_str(), 0777) != 0 && errno != EEXIST) {
        fail("make the directory", dir);
    }
    UniqueFd fd(open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) {
        fail("open the directory", dir);
    }
    return fd;
}

UniqueFd create_output(const UniqueFd & dir, const std::string & dir_name, const std::string & name) {
    UniqueFd fd(openat(dir.get(), name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!fd) {
        fail("write", dir_name + "/" + name);
    }
    return fd;
}

ResultFile::ResultFile(const UniqueFd & dir, std::string dir_name)
    : dir_fd_(dir.get()), dir_name_(std::move(dir_name)) {
    if (unlinkat(dir_fd_, final_name, 0) != 0 && errno != ENOENT) {
        fail("remove the old", dir_name_ + "/" + final_name);
    }
    fd_ = create_output(dir, dir_name_, temporary_name);
    // Where the file system cannot reserve, the write itself will tell.
    if (fallocate(fd_.get(), 0, 0, reserved_bytes) != 0 && (errno == ENOSPC || errno == EFBIG || errno == EDQUOT)) {
        const int error = errno;
        unlinkat(dir_fd_, temporary_name, 0);
        errno = error;
        fail("reserve room for", dir_name_ + "/" + final_name);
    }
}

ResultFile::~ResultFile() {
    if (!committed_) {
        unlinkat(dir_fd_, temporary_name, 0);
    }
}

void ResultFile::commit(const std::string & text) {
    const std::string path = dir_name_ + "/" + final_name;
    size_t done = 0;
    while (done < text.size()) {
        const ssize_t wrote = write(fd_.get(), text.data() + done, text.size() - done);
        if (wrote < 0 && errno == EINTR) {
            continue;
        }
        if (wrote <= 0) {
            fail("write", path);
        }
        done += static_cast<size_t>(wrote);
    }
    if (ftruncate(fd_.get(), static_cast<off_t>(text.size())) != 0 || fsync(fd_.get()) != 0) {
        fail("write", path);
    }
    if (renameat(dir_fd_, temporary_name, dir_fd_, final_name) != 0) {
        fail("rename into", path);
    }
    committed_ = true;
    // The name must be on the disk too. Some file systems (FUSE on phones) cannot sync a directory.
    if (fsync(dir_fd_) != 0 && errno != EINVAL && errno != ENOTSUP && errno != ENOSYS) {
        fail("sync", dir_name_);
    }
}

}  // namespace launcher
