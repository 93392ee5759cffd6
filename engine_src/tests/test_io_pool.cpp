#include "aligned_memory.h"
#include "error.h"
#include "io_pool.h"
#include "shard_files.h"

#include "check.h"
#include "temp_dir.h"

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

using namespace moe;

namespace {

std::vector<char> pattern(size_t n) {
    std::vector<char> bytes(n);
    uint32_t state = 1;
    for (char & b : bytes) {
        state = state * 1664525U + 1013904223U;
        b = static_cast<char>(state >> 24);
    }
    return bytes;
}

void write_file(const std::string & path, const std::vector<char> & bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

struct Range {
    uint64_t offset, size, shift;
};

// Ranges with every kind of edge: aligned or not, across blocks, at the ragged end of the file.
void reads_are_exact(bool direct) {
    const TempDir dir;
    const std::vector<char> bytes = pattern(300'001);
    write_file(dir.file("a"), bytes);
    const ShardFiles files({dir.file("a")}, direct);
    const Range ranges[] = {{0, 4096, 0},      {4096, 8192, 0},       {1, 4095, 0},       {100, 50'000, 0},
                            {100, 8192, 100},  {8191, 2, 0},          {12'288, 1, 0},     {299'000, 1001, 0},
                            {294'912, 5089, 0}, {300'000, 1, 0},      {0, 300'001, 0},    {7, 4096, 7}};
    for (const int lanes : {1, 4, 16}) {
        IoPool pool(files, lanes);
        std::vector<AlignedMemory> windows;
        std::vector<ReadRequest> requests;
        for (const Range & r : ranges) {
            windows.emplace_back(align_up(r.size + 2 * kIoBlock));
            requests.push_back({0, r.offset, r.size, windows.back().data(), r.shift});
        }
        {
            ReadBatch batch(pool);
            batch.submit(requests);
            batch.wait();
        }
        for (size_t i = 0; i < requests.size(); ++i) {
            CHECK(std::memcmp(windows[i].data() + ranges[i].shift, bytes.data() + ranges[i].offset, ranges[i].size) == 0);
        }
        const IoCounters counters = pool.counters();
        uint64_t asked = 0;
        for (const Range & r : ranges) {
            asked += files.direct() ? align_up(r.offset % kIoBlock + r.size) : r.size;
        }
        CHECK(counters.reads == requests.size());
        CHECK(counters.read_bytes == asked);
        CHECK(counters.io_ms > 0);
    }
    std::vector<std::byte> whole(bytes.size());
    files.read_unaligned(0, 3, whole.size() - 3, whole.data());
    CHECK(std::memcmp(whole.data(), bytes.data() + 3, whole.size() - 3) == 0);
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

void a_failed_read_surfaces_where_it_is_waited_for() {
    for (const bool direct : {true, false}) {
        const TempDir dir;
        write_file(dir.file("a"), pattern(200'000));
        const ShardFiles files({dir.file("a")}, direct);
        IoPool pool(files, 3);
        CHECK(truncate(dir.file("a").c_str(), 50'000) == 0);

        AlignedMemory window(64 * kIoBlock);
        std::vector<ReadRequest> requests;
        for (uint64_t i = 0; i < 40; ++i) {
            requests.push_back({0, 100'000, 100, window.data() + i * kIoBlock, 0});
        }
        bool failed = false;
        try {
            ReadBatch batch(pool);
            batch.submit(requests);
            batch.wait();
        } catch (const Error & e) {
            failed = e.code() == ExitCode::io;
        }
        CHECK(failed);

        // The pool goes on serving.
        ReadBatch batch(pool);
        batch.submit({{0, 10, 100, window.data(), 0}});
        batch.wait();
        CHECK(std::memcmp(window.data(), pattern(200).data() + 10, 100) == 0);
    }
}

void an_abandoned_batch_is_waited_for() {
    const TempDir dir;
    write_file(dir.file("a"), pattern(1'000'000));
    const ShardFiles files({dir.file("a")}, true);
    IoPool pool(files, 2);
    AlignedMemory window(300 * kIoBlock);
    for (int i = 0; i < 50; ++i) {
        ReadBatch batch(pool);
        batch.submit({{0, 0, 1'000'000, window.data(), 0}, {0, 500, 1000, window.data() + 290 * kIoBlock, 0}});
    }
    CHECK(pool.counters().reads == 100);
}

void lanes_are_limited() {
    const TempDir dir;
    write_file(dir.file("a"), pattern(100));
    const ShardFiles files({dir.file("a")}, false);
    for (const int lanes : {0, 17}) {
        try {
            const IoPool pool(files, lanes);
            CHECK(false);
        } catch (const Error & e) {
            CHECK(e.code() == ExitCode::usage);
        }
    }
}

}  // namespace

int main() {
    check::run("direct reads are exact", [] { reads_are_exact(true); });
    check::run("buffered reads are exact", [] { reads_are_exact(false); });
    check::run("large unaligned reads go in steps", large_unaligned_reads_go_in_steps);
    check::run("a file smaller than a block works", a_file_smaller_than_a_block_works);
    check::run("a refusing file system means buffered reads", a_refusing_file_system_means_buffered_reads);
    check::run("buffered on request says so", buffered_on_request_says_so);
    check::run("an absent file is an I/O error", an_absent_file_is_an_io_error);
    check::run("a failed read surfaces where it is waited for", a_failed_read_surfaces_where_it_is_waited_for);
    check::run("an abandoned batch is waited for", an_abandoned_batch_is_waited_for);
    check::run("lanes are limited", lanes_are_limited);
    return check::result();
}
