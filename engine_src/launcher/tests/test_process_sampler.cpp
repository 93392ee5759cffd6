#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "check.h"
#include "process_sampler.h"

using launcher::parse_stat;
using launcher::parse_status;
using launcher::ProcessSample;
using launcher::ProcessSampler;

TEST(status_of_a_kernel_with_all_fields) {
    ProcessSample sample;
    THAT(parse_status("Name:\tVmRSS: 1\nVmPeak:\t  9 kB\nVmHWM:\t 300 kB\nVmRSS:\t 200 kB\nRssAnon:\t 120 kB\n"
                      "VmData:\t  500 kB\nVmSwap:\t  7 kB\nThreads:\t12\n", sample));
    EQUAL(sample.rss_high_water_bytes, 300 * 1024);
    EQUAL(sample.rss_bytes, 200 * 1024);
    EQUAL(sample.anon_bytes, 120 * 1024);
    EQUAL(sample.vm_data_bytes, 500 * 1024);
    EQUAL(sample.swap_bytes, 7 * 1024);
    EQUAL(sample.threads, 12);
}

TEST(status_of_an_old_kernel_leaves_gaps) {
    ProcessSample sample;
    THAT(parse_status("Name:\tx\nVmHWM:\t 300 kB\nVmRSS:\t 200 kB\nVmData:\t 500 kB\nThreads:\t1\n", sample));
    EQUAL(sample.anon_bytes, -1);
    EQUAL(sample.swap_bytes, -1);
    EQUAL(sample.vm_data_bytes, 500 * 1024);
    EQUAL(sample.threads, 1);
}

TEST(status_of_an_ended_process_is_no_sample) {
    ProcessSample sample;
    THAT(!parse_status("Name:\tx\nState:\tZ (zombie)\nThreads:\t1\n", sample));
    THAT(!parse_status("", sample));
}

TEST(stat_with_a_hostile_name) {
    ProcessSample sample;
    THAT(parse_stat("42 (a) R 1 (b) S) S 1 42 42 0 -1 4194304 111 0 22 0 33 44 0 0 20 0 3 0 5", sample));
    EQUAL(sample.minflt, 111);
    EQUAL(sample.majflt, 22);
    EQUAL(sample.user_ticks, 33);
    EQUAL(sample.system_ticks, 44);
    THAT(!parse_stat("42 (cut", sample));
    THAT(!parse_stat("42 (cut) S 1 2 3", sample));
}

TEST(sampler_sees_own_memory_grow) {
    constexpr size_t size = 32 << 20;
    ProcessSampler sampler(getpid());
    ProcessSample before;
    ProcessSample after;
    THAT(sampler.read(before));
    void * const block = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    THAT(block != MAP_FAILED);
    std::memset(block, 1, size);
    THAT(sampler.read(after));
    munmap(block, size);
    // Older kernels keep up to 64 pages per thread out of the shared count.
    constexpr int64_t slack = 1 << 20;
    THAT(after.anon_bytes - before.anon_bytes > static_cast<int64_t>(size) - slack);
#if !defined(__SANITIZE_THREAD__)  // which keeps a shadow several times the size
    THAT(after.anon_bytes - before.anon_bytes < static_cast<int64_t>(size) + slack);
#endif
    THAT(after.vm_data_bytes - before.vm_data_bytes >= static_cast<int64_t>(size));
    THAT(after.minflt > before.minflt);
    EQUAL(sampler.ticks_to_ms(-1), -1);
}

TEST(sampler_of_no_process_has_nothing) {
    ProcessSampler sampler(0x7ffffff0);
    ProcessSample sample;
    THAT(!sampler.read(sample));
}
