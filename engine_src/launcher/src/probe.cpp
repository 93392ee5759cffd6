#include "probe.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "aligned_buffer.h"
#include "clocks.h"
#include "files.h"
#include "json_writer.h"
#include "unique_fd.h"

namespace launcher {

namespace {

using Stop = std::function<bool()>;

constexpr size_t read_bytes_each = 256 * 1024;
constexpr int reads_per_rep = 64;
constexpr size_t reads_between_stops = 8;

// Where each repetition leaves its outcome, so that the compiler must compute it.
volatile double compute_sink;

// Every step needs the one before it, in integers and in floating point alike: the time is that of the
// arithmetic, whatever the width of the core. A few milliseconds.
void compute_once() {
    constexpr int steps = 1500000;
    uint64_t state = 0x243f6a8885a308d3ULL;
    double value = 1.0;
    for (int i = 0; i < steps; ++i) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Bounded (the factor is below one) and never near zero, so no step meets a denormal number.
        value = value * 0.9375 + static_cast<double>(state >> 40) * 0x1p-24 + 0.25;
    }
    compute_sink = value + static_cast<double>(state & 1);
}

struct Timings {
    std::vector<double> ms;
    std::vector<double> cpu_ms;

    static double median(std::vector<double> sorted) {
        std::sort(sorted.begin(), sorted.end());
        const size_t middle = sorted.size() / 2;
        return sorted.size() % 2 != 0 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
    }
    double least() const { return *std::min_element(ms.begin(), ms.end()); }
};

// Repeats until the time is up; false when it was stopped or the work failed. `prepare` is not timed.
template <typename Prepare, typename Work>
bool repeat(double seconds, const Stop & stop, Timings & timings, Prepare prepare, Work work) {
    const int64_t deadline = monotonic_ns() + static_cast<int64_t>(seconds * 1e9);
    do {
        if (stop()) {
            return false;
        }
        prepare();
        const int64_t begun = monotonic_ns();
        const int64_t cpu_begun = process_cpu_ns();
        if (!work()) {
            return false;
        }
        timings.cpu_ms.push_back(static_cast<double>(process_cpu_ns() - cpu_begun) / 1e6);
        timings.ms.push_back(static_cast<double>(monotonic_ns() - begun) / 1e6);
    } while (monotonic_ns() < deadline);
    return true;
}

bool read_block(int fd, void * target, int64_t offset) {
    ssize_t got = 0;
    do {
        got = pread(fd, target, read_bytes_each, static_cast<off_t>(offset));
    } while (got < 0 && errno == EINTR);
    return got == static_cast<ssize_t>(read_bytes_each);
}

// The same places on every run: whole blocks spread over the file by a multiplicative sequence.
std::vector<int64_t> read_offsets(int64_t file_bytes) {
    const auto blocks = static_cast<uint64_t>(file_bytes) / read_bytes_each;
    std::vector<int64_t> offsets;
    for (uint64_t i = 0; i < reads_per_rep; ++i) {
        offsets.push_back(static_cast<int64_t>((i * 2654435761ULL + 97) % blocks * read_bytes_each));
    }
    return offsets;
}

// Some file systems accept O_DIRECT, report success and leave the buffer untouched: the bytes are compared with
// what a buffered read brings.
bool direct_reads_work(int direct_fd, int buffered_fd, int64_t offset) {
    const AlignedBuffer direct(read_bytes_each);
    const AlignedBuffer buffered(read_bytes_each);
    if (!direct || !buffered || !read_block(buffered_fd, buffered.get(), offset)) {
        return false;
    }
    std::memset(direct.get(), buffered.get()[0] ^ 0xff, read_bytes_each);
    return read_block(direct_fd, direct.get(), offset) &&
           std::memcmp(direct.get(), buffered.get(), read_bytes_each) == 0;
}

// False when it was stopped. A file that cannot be read, or is shorter than one block, leaves the fields empty.
bool probe_reads(double seconds, const std::string & file, const Stop & stop, ProbeResult & result) {
    const UniqueFd buffered = open_to_read(file);
    struct stat info {};
    const AlignedBuffer buffer(read_bytes_each);
    if (!buffered || !buffer || fstat(buffered.get(), &info) != 0 || !S_ISREG(info.st_mode) ||
        info.st_size < static_cast<off_t>(read_bytes_each)) {
        return !stop();
    }
    const std::vector<int64_t> offsets = read_offsets(info.st_size);
    posix_fadvise(buffered.get(), 0, 0, POSIX_FADV_RANDOM);  // no reading ahead into the cell's cache
    const UniqueFd direct(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
    const bool is_direct = direct && direct_reads_work(direct.get(), buffered.get(), offsets.front());
    const int fd = is_direct ? direct.get() : buffered.get();

    const auto forget_cache = [&] {
        if (!is_direct) {
            // A request only: the kernel may keep what is in use elsewhere. The rest of the file stays as it is,
            // for it may be the model, whose cached part belongs to the cell.
            for (const int64_t offset : offsets) {
                posix_fadvise(fd, static_cast<off_t>(offset), read_bytes_each, POSIX_FADV_DONTNEED);
            }
        }
    };
    const auto read_all = [&] {
        for (size_t i = 0; i < offsets.size(); ++i) {
            // On slow storage the whole set takes too long to be deaf to a stop; asking each time would be measured.
            if ((i % reads_between_stops == reads_between_stops - 1 && stop()) ||
                !read_block(fd, buffer.get(), offsets[i])) {
                return false;
            }
        }
        return true;
    };
    Timings timings;
    if (!repeat(seconds, stop, timings, forget_cache, read_all)) {
        return !stop();  // else a read failed: no figure
    }
    result.read_ms = Timings::median(timings.ms);
    result.read_min_ms = timings.least();
    result.read_reps = static_cast<int64_t>(timings.ms.size());
    result.read_bytes = static_cast<int64_t>(read_bytes_each) * reads_per_rep;
    result.read_direct = is_direct;
    return true;
}

}  // namespace

std::optional<ProbeResult> run_probe(double seconds, const std::string & file, const Stop & stop) {
    const int64_t begun = monotonic_ns();
    const double part_s = file.empty() ? seconds : seconds / 2;
    ProbeResult result;
    Timings timings;
    const auto compute = [] {
        compute_once();
        return true;
    };
    if (!repeat(part_s, stop, timings, [] {}, compute)) {
        return std::nullopt;
    }
    result.compute_ms = Timings::median(timings.ms);
    result.compute_cpu_ms = Timings::median(timings.cpu_ms);
    result.compute_min_ms = timings.least();
    result.compute_reps = static_cast<int64_t>(timings.ms.size());
    if (!file.empty() && !probe_reads(part_s, file, stop, result)) {
        return std::nullopt;
    }
    result.wall_s = static_cast<double>(monotonic_ns() - begun) / 1e9;
    return result;
}

void write_json(JsonWriter & json, const ProbeResult & probe) {
    json.begin_object().field("compute_ms", probe.compute_ms).field("compute_cpu_ms", probe.compute_cpu_ms);
    json.field("compute_min_ms", probe.compute_min_ms).field("compute_reps", probe.compute_reps);
    json.field("read_ms", probe.read_ms).field("read_min_ms", probe.read_min_ms).field("read_reps", probe.read_reps);
    json.field("read_bytes", probe.read_bytes).field("read_direct", probe.read_direct);
    json.field("wall_s", probe.wall_s).end_object();
}

}  // namespace launcher
