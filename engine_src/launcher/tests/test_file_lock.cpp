#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "check.h"
#include "clocks.h"
#include "errors.h"
#include "file_lock.h"

using launcher::FileLock;
using launcher::is_locked;
using launcher::monotonic_ns;
using launcher::OutputError;
using launcher::UniqueFd;

static std::string refusal(const std::string & path) {
    return check::message_of<OutputError>([&] { FileLock::take(path); });
}

TEST(a_lock_is_held_by_one_and_by_nobody_when_it_is_let_go_of) {
    const check::TempDir dir;
    const std::string path = dir.path("lock");
    THAT(!is_locked(path));
    {
        const auto lock = FileLock::take(path);
        THAT(lock.has_value());
        THAT(is_locked(path));
        THAT(!FileLock::take(path).has_value());
    }
    THAT(!is_locked(path));
    THAT(FileLock::take(path).has_value());
}

TEST(a_lock_is_for_every_user_and_keeps_what_it_contains) {
    const check::TempDir dir;
    const mode_t mask = umask(077);
    THAT(FileLock::take(dir.path("lock")).has_value());
    umask(mask);
    struct stat info {};
    THAT(stat(dir.path("lock").c_str(), &info) == 0);
    EQUAL(info.st_mode & 0777, mode_t{0666});
    dir.write("lock", "left behind");
    THAT(FileLock::take(dir.path("lock")).has_value());
    EQUAL(dir.read("lock"), "left behind");
}

TEST(looking_at_a_lock_does_not_hold_up_who_takes_it) {
    const check::TempDir dir;
    dir.write("lock", "");
    const UniqueFd look(open(dir.path("lock").c_str(), O_RDONLY));
    THAT(flock(look.get(), LOCK_SH) == 0);
    THAT(!is_locked(dir.path("lock")));  // those who look do not see each other
    const int64_t begun = monotonic_ns();
    int64_t looked_ns = 0;
    std::thread later([&] {
        launcher::sleep_ns(50 * 1000000LL);
        flock(look.get(), LOCK_UN);
        looked_ns = monotonic_ns() - begun;
    });
    const bool taken = FileLock::take(dir.path("lock")).has_value();
    later.join();
    THAT(taken || looked_ns > 200 * 1000000LL);  // a machine that was busy elsewhere: nobody waits for that long
}

TEST(what_is_no_lock_file_is_refused) {
    const check::TempDir dir;
    dir.write("file", "precious");
    THAT(symlink(dir.path("file").c_str(), dir.path("link").c_str()) == 0);
    EQUAL(refusal(dir.path("link")), "cannot use " + dir.path("link") + " as a lock: it is a symbolic link");
    THAT(symlink(dir.path("nowhere").c_str(), dir.path("dangling").c_str()) == 0);
    THAT(refusal(dir.path("dangling")).find("symbolic link") != std::string::npos);
    THAT(access(dir.path("nowhere").c_str(), F_OK) != 0);
    THAT(link(dir.path("file").c_str(), dir.path("second name").c_str()) == 0);
    THAT(refusal(dir.path("file")).find("other names") != std::string::npos);
    THAT(mkfifo(dir.path("fifo").c_str(), 0600) == 0);
    THAT(refusal(dir.path("fifo")).find("not a regular file") != std::string::npos);
    THAT(refusal(dir.path()).find("Is a directory") != std::string::npos);
    THAT(refusal(dir.path("no/such/lock")).find("No such file or directory") != std::string::npos);
    THAT(!is_locked(dir.path("no/such/lock")));
    THAT(!is_locked(dir.path("file.d/lock")));
}

TEST(holders_are_those_who_locked_it_not_those_who_have_it_open) {
    const check::TempDir dir;
    const std::string path = dir.path("lock");
    const auto lock = FileLock::take(path);
    THAT(launcher::lock_holders(path).empty());  // we do not count ourselves
    int ends[2];
    THAT(pipe2(ends, O_CLOEXEC) == 0);
    const UniqueFd word(ends[0]);
    UniqueFd keeps_waiting(ends[1]);
    const auto wait_in_child = [&] {
        const pid_t child = fork();
        if (child == 0) {
            keeps_waiting.reset();
            char byte = 0;
            const ssize_t got = read(word.get(), &byte, 1);
            _exit(static_cast<int>(got));
        }
        return child;
    };
    const pid_t inheritor = wait_in_child();  // of the open file, hence of its lock
    const UniqueFd look(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    const auto holders = launcher::lock_holders(path);
    keeps_waiting.reset();
    waitpid(inheritor, nullptr, 0);
    EQUAL(holders.size(), size_t{1});
    EQUAL(holders.front(), inheritor);
    THAT(launcher::lock_holders(path).empty());
    THAT(launcher::lock_holders(dir.path("absent")).empty());
}
