#include <unistd.h>

#include "check.h"
#include "direct_io.h"
#include "engines.h"
#include "storage.h"

using launcher::filesystem_of;
using launcher::is_engine_name;

// A literal with NULs in it, and the one at its end, as /proc/PID/cmdline has them.
template <size_t size>
static std::string joined(const char (&text)[size]) {
    return std::string(text, size);
}

static const char * const mounts =
    "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    "23 22 0:40 / /storage/emulated rw shared:2 master:1 - fuse /dev/fuse rw,user_id=0\n"
    "24 22 8:2 / /data rw - ext4 /dev/sda2 rw\n"
    "25 22 8:3 / /data rw - f2fs /dev/sda3 rw\n"
    "26 25 8:4 / /data/with\\040space rw - xfs /dev/sda4 rw\n"
    "a line that is none\n";

TEST(the_file_system_is_that_of_the_closest_mount) {
    EQUAL(filesystem_of("/data/local/tmp", "0:0", mounts).value(), "f2fs");  // mounted over the other
    EQUAL(filesystem_of("/data", "0:0", mounts).value(), "f2fs");
    EQUAL(filesystem_of("/database", "0:0", mounts).value(), "ext4");
    EQUAL(filesystem_of("/storage/emulated/0", "0:0", mounts).value(), "fuse");
    EQUAL(filesystem_of("/data/with space/x", "0:0", mounts).value(), "xfs");
    const char * const elsewhere = "23 22 0:40 / /elsewhere rw - fuse /dev/fuse rw\n";
    EQUAL(filesystem_of("/here", "0:40", elsewhere).value(), "fuse");
    THAT(!filesystem_of("/here", "0:41", elsewhere));
    THAT(!filesystem_of("/here", "0:41", ""));
}

TEST(a_directory_has_room_and_a_name_without_links) {
    const check::TempDir dir;
    dir.write("d/file", "x");
    THAT(symlink("d", dir.path("link").c_str()) == 0);
    const auto storage = launcher::inspect_storage(dir.path("link"), "/proc");
    EQUAL(storage.path, dir.path("d"));
    THAT(storage.size_bytes > 0 && storage.free_bytes > 0 && storage.free_bytes <= storage.size_bytes);
    const auto refusal = [&](const std::string & path) {
        return check::message_of<std::runtime_error>([&] { launcher::inspect_storage(path, "/proc"); });
    };
    THAT(refusal(dir.path("nowhere")).find("No such file or directory") != std::string::npos);
    THAT(refusal(dir.path("d/file")).find("not a directory") != std::string::npos);
}

TEST(direct_reads_are_tried_and_nothing_is_left_of_it) {
    const check::TempDir dir;
    const auto direct = launcher::test_direct_io(dir.path());
    THAT(direct.writable);
    THAT(direct.works.has_value());
    EQUAL(direct.reason.has_value(), !*direct.works);
    THAT(rmdir(dir.path().c_str()) == 0);  // it is empty
    const auto nowhere = launcher::test_direct_io(dir.path());
    THAT(!nowhere.writable && !nowhere.works);
    EQUAL(nowhere.reason.value(), "cannot make a file here: No such file or directory");
}

TEST(engines_are_known_by_their_names) {
    for (const char * name : {"moe-engine", "llama-cli", "llama-server", "bmoe-cli", "epq-worker", "ollama", "mlc_llm"}) {
        check::that(is_engine_name(name), name, __FILE__, __LINE__);
    }
    for (const char * name : {"", "moe-launcher", "moe-engine2", "llama", "llamas", "ollama2", "mlc", "bash"}) {
        check::that(!is_engine_name(name), name, __FILE__, __LINE__);
    }
}

TEST(engines_are_found_whatever_way_they_show_their_name) {
    const check::TempDir dir;
    const std::string self = std::to_string(getpid());
    dir.write("1/stat", "1 (init) S 0");
    dir.write("10/comm", "moe-engine\n");
    dir.write("10/cmdline", joined("/data/local/tmp/moe-engine\0--model\0x"));
    dir.write("11/comm", "llama-perplexit\n");
    dir.write("11/cmdline", joined("./llama-perplexity\0-m\0x"));
    dir.write("12/comm", "mlc_llm\n");
    dir.write("12/cmdline", joined("/usr/bin/python3\0/usr/bin/mlc_llm"));
    dir.write("13/comm", "ollama\n");  // ended, and not yet collected
    dir.write("13/stat", "13 (ollama) Z 1 13");
    dir.write("14/comm", "python3\n");
    dir.write("14/cmdline", joined("python3\0--engine=moe-engine"));
    dir.write(self + "/comm", "moe-engine\n");
    dir.write("notes/comm", "moe-engine\n");
    const auto engines = launcher::find_engines(dir.path());
    EQUAL(engines.found.size(), size_t{3});
    EQUAL(engines.found[0].pid, 10);
    EQUAL(engines.found[0].name, "moe-engine");
    EQUAL(engines.found[1].name, "llama-perplexity");
    EQUAL(engines.found[2].name, "mlc_llm");
    THAT(engines.complete);
    THAT(!launcher::find_engines(dir.path("10")).complete);
}
