#include <sys/stat.h>

#include <string>
#include <vector>

#include "check.h"
#include "device_lock.h"
#include "file_lock.h"

using launcher::FileLock;
using launcher::require_own_content;

TEST(a_lock_that_is_empty_or_a_holders_may_be_written) {
    const check::TempDir dir;
    const std::string long_owner(40000, 'x');
    for (const std::string & content :
         {std::string(), std::string(R"({"owner":{"token":"t"},"pid":1})" "\n"), std::string(R"({"owner": 1})"),
          R"({"owner":")" + long_owner + R"("})", std::string(99, '\0')}) {
        dir.write("lock", content);
        const auto lock = FileLock::take(dir.path("lock"));
        THAT(lock.has_value());
        require_own_content(lock->fd(), dir.path("lock"));
    }
}

TEST(a_file_with_other_content_is_no_devices_lock) {
    const check::TempDir dir;
    const std::string own = R"({"owner":{"token":"t"}})";
    for (const std::string & content :
         {std::string("my thesis\n"), std::string(" "), std::string("{}"), std::string("["), std::string("[]"),
          std::string(R"({"Owner": 1})"), std::string(R"(["owner"])"), own + own, own + std::string(70000, ' '),
          std::string(70000, '\0'), std::string("\0x", 2), std::string("\xff\xfe")}) {
        dir.write("file", content);
        struct stat before {};
        THAT(stat(dir.path("file").c_str(), &before) == 0);
        const auto lock = FileLock::take(dir.path("file"));
        THAT(lock.has_value());
        const std::string words =
            check::message_of<std::runtime_error>([&] { require_own_content(lock->fd(), dir.path("file")); });
        EQUAL(words.find(dir.path("file") + " is not a device's lock"), size_t{0});
        THAT(words.find('\n') == std::string::npos);
        struct stat after {};
        THAT(stat(dir.path("file").c_str(), &after) == 0);
        THAT(dir.read("file") == content);
        EQUAL(after.st_mtim.tv_nsec, before.st_mtim.tv_nsec);
    }
}
