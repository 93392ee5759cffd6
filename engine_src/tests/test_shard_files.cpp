#include "aligned_memory.h"
#include "error.h"
#include "shard_files.h"

#include "check.h"
#include "pattern_file.h"
#include "temp_dir.h"

#include <cstring>
#include <string>
#include <vector>

using namespace moe;

namespace {

void unaligned_reads_are_exact() {
    const TempDir dir;
    const std::vector<char> bytes = pattern(300'001);
    write_file(dir.file("a"), bytes);
    for (const bool direct : {true, false}) {
        const ShardFiles files({dir.file("a")}, direct);
        std::vector<std::byte> whole(bytes.size());
        files.read_unaligned(0, 3, whole.size() - 3, whole.data());
        CHECK(std::memcmp(whole.data(), bytes.data() + 3, whole.size() - 3) == 0);
    }
}

void large_unaligned_reads_go_in_steps() {
    const TempDir dir;
    const std::vector<char> bytes = pattern(3'500'123);
    write_file(dir.file("a"), bytes);
    const ShardFiles files({dir.file("a")}, true);
    std::vector<std::byte> part(3'400'000);
    files.read_unaligned(0, 98'765, part.size(), part.data());
    CHECK(std::memcmp(part.data(), bytes.data() + 98'765, part.size()) == 0);
}

void a_file_smaller_than_a_block_works() {
    const TempDir dir;
    const std::vector<char> bytes = pattern(10);
    write_file(dir.file("a"), bytes);
    const ShardFiles files({dir.file("a")}, true);
    AlignedMemory window(2 * kIoBlock);
    files.read({0, 2, 8, window.data(), 0});
    CHECK(std::memcmp(window.data(), bytes.data() + 2, 8) == 0);
}

// procfs refuses O_DIRECT, like some file systems that models lie on.
void a_refusing_file_system_means_buffered_reads() {
    const ShardFiles files({"/proc/self/cmdline"}, true);
    CHECK(!files.direct());
    CHECK(files.reason().find("/proc/self/cmdline") != std::string::npos);
}

void buffered_on_request_says_so() {
    const TempDir dir;
    write_file(dir.file("a"), pattern(5000));
    const ShardFiles files({dir.file("a")}, false);
    CHECK(!files.direct());
    CHECK(!files.reason().empty());
}

void an_absent_file_is_an_io_error() {
    try {
        const ShardFiles files({"/nonexistent/model.gguf"}, true);
        CHECK(false);
    } catch (const Error & e) {
        CHECK(e.code() == ExitCode::io);
        CHECK(std::string(e.what()).find("/nonexistent/model.gguf") != std::string::npos);
    }
}

}  // namespace

int main() {
    check::run("unaligned reads are exact", unaligned_reads_are_exact);
    check::run("large unaligned reads go in steps", large_unaligned_reads_go_in_steps);
    check::run("a file smaller than a block works", a_file_smaller_than_a_block_works);
    check::run("a refusing file system means buffered reads", a_refusing_file_system_means_buffered_reads);
    check::run("buffered on request says so", buffered_on_request_says_so);
    check::run("an absent file is an I/O error", an_absent_file_is_an_io_error);
    return check::result();
}
