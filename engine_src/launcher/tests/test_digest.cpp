#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "digest.h"
#include "page_cache.h"

using launcher::digest_json;
using launcher::evict_from_page_cache;

static bool never() { return false; }

static std::string digest(const std::vector<std::string> & paths, bool no_sha256 = false) {
    launcher::Options options;
    options.paths = paths;
    options.no_sha256 = no_sha256;
    return digest_json(options, never).value();
}

static bool has(const std::string & text, const std::string & piece) { return text.find(piece) != std::string::npos; }

TEST(a_digest_has_all_that_tells_one_file_from_another) {
    const check::TempDir dir;
    dir.write("abc", "abc");
    const std::string told = digest({dir.path("abc")});
    THAT(has(told, "\"path\":\"" + dir.path("abc") + "\",\"bytes\":3,"));
    THAT(has(told, "\"sha256\":\"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\""));
    struct stat info {};
    THAT(stat(dir.path("abc").c_str(), &info) == 0);
    THAT(has(told, "\"inode\":" + std::to_string(info.st_ino)));
    THAT(has(told, "\"mtime_ns\":" + std::to_string(info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec)));
    THAT(has(digest({dir.path("abc")}, true), "\"bytes\":3,"));
    THAT(has(digest({dir.path("abc")}, true), "\"sha256\":null"));
}

TEST(a_file_longer_than_a_piece_is_read_to_its_end) {
    const check::TempDir dir;
    dir.write("a million", std::string(1000000, 'a'));
    dir.write("more", std::string(3 * (1 << 20) + 1, 'a'));
    THAT(has(digest({dir.path("a million")}),
             "\"sha256\":\"cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0\""));
    THAT(has(digest({dir.path("more")}), "\"bytes\":3145729,"));
}

TEST(a_directory_stands_for_its_files_and_an_absent_file_for_itself) {
    const check::TempDir dir;
    dir.write("d/b", "1");
    dir.write("d/.hidden", "2");
    dir.write("d/deeper/c", "3");
    THAT(symlink("b", dir.path("d/link").c_str()) == 0);
    THAT(mkfifo(dir.path("d/fifo").c_str(), 0600) == 0);
    const std::string told = digest({dir.path("d"), dir.path("absent"), dir.path("d/link")});
    THAT(has(told, dir.path("d/b") + "\""));
    THAT(has(told, dir.path("d/.hidden")));
    THAT(!has(told, "deeper") && !has(told, "fifo"));
    THAT(has(told, "{\"path\":\"" + dir.path("absent") + "\",\"bytes\":null,\"mtime_ns\":null,\"inode\":null,\"sha256\":null}"));
    THAT(has(told, "{\"path\":\"" + dir.path("d/link") + "\",\"bytes\":1,"));  // named by the caller, so meant
    EQUAL(check::message_of<std::runtime_error>([&] { digest({dir.path("d/fifo")}); }),
          "cannot read " + dir.path("d/fifo") + ": it is not a regular file");
}

TEST(a_digest_that_was_stopped_is_none) {
    const check::TempDir dir;
    dir.write("f", std::string(3 << 20, 'x'));
    launcher::Options options;
    options.paths = {dir.path("f")};
    int asked = 0;
    THAT(!digest_json(options, [&] { return ++asked == 2; }));
    EQUAL(asked, 2);
}

TEST(evicted_files_are_counted_together) {
    const check::TempDir dir;
    dir.write("one", std::string(1 << 20, 'x'));
    dir.write("two", "xy");
    dir.write("empty", "");
    const auto cache = evict_from_page_cache({dir.path("one"), dir.path("two"), dir.path("empty")});
    EQUAL(cache.before_bytes.value(), (1 << 20) + 2);
    THAT(*cache.after_bytes >= 0 && *cache.after_bytes <= *cache.before_bytes);  // a tmpfs has them nowhere else
    for (const std::string & path : {dir.path("absent"), dir.path()}) {
        THAT(has(check::message_of<std::runtime_error>([&] { evict_from_page_cache({path}); }), "cannot evict " + path));
    }
}
