// What a paged model does to its surroundings, and what its surroundings may do to it.
#include "decoding.h"

#include "llama-ext.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

using namespace decoding;

namespace {

void a_failed_read_ends_the_decode_with_an_error() {
    for (const uint64_t slots : {0, 2, 8}) {
        const TempDir dir;
        PagerOptions options;
        options.model_path = tiny::write(model(GGML_TYPE_F16, 2), dir.file("m"));
        options.cache_bytes = slots * slot_bytes(options.model_path);
        options.dense = DensePolicy::anon;
        const Run whole = run_paged(options);
        const Run cut = run_paged(options, 1, false, [&](int call) {
            if (call == 6) {
                const auto size = static_cast<off_t>(std::filesystem::file_size(options.model_path));
                CHECK(truncate(options.model_path.c_str(), size - 900'000) == 0);
            }
        });
        CHECK(cut.failed_at >= 6);
        CHECK(cut.error && cut.error->code() == ExitCode::io);
        CHECK(cut.error && std::string(cut.error->what()).find(options.model_path) == 0);
        CHECK(std::equal(cut.logits.begin(), cut.logits.end(), whole.logits.begin()));
    }
}

void decoding_goes_on_once_the_file_is_readable_again() {
    const TempDir dir;
    PagerOptions options;
    options.model_path = tiny::write(model(GGML_TYPE_F16, 2), dir.file("m"));
    options.cache_bytes = 3 * slot_bytes(options.model_path);
    options.dense = DensePolicy::anon;
    const Run plain = run_plain(options.model_path, 1);

    std::ifstream in(options.model_path, std::ios::binary);
    const std::string content((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const std::unique_ptr<Pager> pager = Pager::open(options);
    llama_model_params params = llama_model_default_params();
    pager->configure(params);
    const ModelPtr m(llama_model_load_from_file(options.model_path.c_str(), params));
    pager->finish_loading(m.get());
    const ContextPtr context = make_context(m.get(), 1);
    Run run;
    generate(context.get(), run, [](int) {});
    CHECK(same_bits(plain, run));

    CHECK(truncate(options.model_path.c_str(), static_cast<off_t>(content.size() - 1'500'000)) == 0);
    llama_memory_clear(llama_get_memory(context.get()), true);
    Run broken;
    generate(context.get(), broken, [](int) {});
    CHECK(broken.failed_at >= 0);
    CHECK(pager->last_error().has_value());

    std::fstream out(options.model_path, std::ios::binary | std::ios::in | std::ios::out);
    out.write(content.data(), static_cast<std::streamsize>(content.size())).flush();
    llama_memory_clear(llama_get_memory(context.get()), true);
    Run repaired;
    generate(context.get(), repaired, [](int) {});
    CHECK(same_bits(plain, repaired));
    CHECK(!pager->last_error().has_value());
}

// Reads are in flight when a decode is given up, some of them speculative: none of them is taken for complete later.
void a_failure_amid_overlap_and_speculation_leaves_nothing_behind() {
    const TempDir dir;
    PagerOptions options;
    options.model_path = tiny::write(model(GGML_TYPE_F16, 3), dir.file("m"));
    options.dense = DensePolicy::anon;
    options.executor.overlap = true;
    options.foresight.speculate_max = 8;
    const Run plain = run_plain(options.model_path, 1);
    std::ifstream in(options.model_path, std::ios::binary);
    const std::string content((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    for (const uint32_t ahead : {0U, 2U}) {
        for (const uint64_t slots : {4, 5}) {
            options.foresight.predict = ahead == 0;
            options.foresight.prefetch = ahead;
            options.cache_bytes = slots * slot_bytes(options.model_path);
            Session session(options);
            CHECK(same_bits(plain, session.prompt()));
            for (const int broken_at : {1, 3, 9}) {
                const Run broken = session.prompt(0, [&](int call) {
                    if (call == broken_at) {
                        CHECK(truncate(options.model_path.c_str(),
                              static_cast<off_t>(content.size() - 1'700'000)) == 0);
                    }
                });
                CHECK(broken.failed_at >= broken_at);
                CHECK(broken.error && broken.error->code() == ExitCode::io);
                CHECK(std::equal(broken.logits.begin(), broken.logits.end(), plain.logits.begin()));
                std::fstream out(options.model_path, std::ios::binary | std::ios::in | std::ios::out);
                out.write(content.data(), static_cast<std::streamsize>(content.size())).flush();
                const Run repaired = session.prompt();
                CHECK(same_bits(plain, repaired));
                CHECK(!repaired.error);
                CHECK(repaired.counters.foresight && repaired.counters.foresight->read_bytes > 0);
            }
        }
    }
}

void a_model_that_does_not_load_is_reported() {
    const TempDir dir;
    PagerOptions options;
    options.model_path = tiny::write(model(GGML_TYPE_F16, 2), dir.file("m"));
    const std::unique_ptr<Pager> pager = Pager::open(options);
    llama_model_params params = llama_model_default_params();
    pager->configure(params);
    try {
        pager->finish_loading(nullptr);
        CHECK(false);
    } catch (const Error & e) {
        CHECK(e.code() == ExitCode::model);
    }
}

// As the command line plans memory: the model's shape without its weights, in a context, before any loading.
void a_dry_run_puts_expert_matmuls_on_the_device() {
    const TempDir dir;
    PagerOptions options;
    options.model_path = tiny::write(model(GGML_TYPE_F16, 2), dir.file("m"));
    uint64_t compute[2] = {};
    for (const bool paged : {false, true}) {
        llama_model_params params = llama_model_default_params();
        const std::unique_ptr<Pager> pager = Pager::open(options);
        if (paged) {
            pager->configure(params);
        }
        params.use_extra_bufts = false;
        params.no_alloc = true;
        params.load_mode = LLAMA_LOAD_MODE_NONE;
        const ModelPtr m(llama_model_load_from_file(options.model_path.c_str(), params));
        CHECK(m != nullptr);
        const ContextPtr context = make_context(m.get(), 1);
        CHECK(context != nullptr);
        if (context) {
            for (const auto & [type, part] : llama_get_memory_breakdown(context.get())) {
                compute[paged ? 1 : 0] += part.compute;
            }
        }
    }
    CHECK(compute[0] > 0);
    // No room for copies of expert tensors.
    CHECK(compute[1] < compute[0] + 256 * 1024);
}

// Bytes of the file's range that are in the page cache.
uint64_t cached_bytes(const std::string & path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const uint64_t size = std::filesystem::file_size(path);
    void * map = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    std::vector<unsigned char> pages((size + 4095) / 4096);
    mincore(map, size, pages.data());
    munmap(map, size);
    close(fd);
    return 4096 * static_cast<uint64_t>(std::count_if(pages.begin(), pages.end(),
          [](unsigned char p) { return p & 1; }));
}

void drop_cached(const std::string & path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    fsync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

void the_page_cache_stays_clear_of_experts() {
    const TempDir dir;
    tiny::Model m = model(GGML_TYPE_F16, 4);
    m.n_expert = 16;
    m.n_ff_exp = 512;
    PagerOptions options;
    options.model_path = tiny::write(m, dir.file("m"));
    const PagerInfo info = Pager::open(options)->info();
    const uint64_t size = std::filesystem::file_size(options.model_path);
    const uint64_t dense_bytes = size - info.expert_bytes;
    drop_cached(options.model_path);
    if (!info.direct_io || cached_bytes(options.model_path) > size / 20) {
        std::fprintf(stderr, "skipped: no direct I/O here, or the page cache cannot be emptied\n");
        return;
    }
    options.dense = DensePolicy::anon;
    run_paged(options);
    // Reading the metadata brings in some readahead; the embedding rows are mapped.
    const uint64_t anon = cached_bytes(options.model_path);
    CHECK(anon < 700 * 1024);

    drop_cached(options.model_path);
    options.dense = DensePolicy::mmap;
    run_paged(options);
    const uint64_t mapped = cached_bytes(options.model_path);
    CHECK(mapped < dense_bytes + 700 * 1024);
    std::fprintf(stderr, "page cache after a run: anon %llu, mmap %llu of %llu bytes (dense %llu)\n",
                 static_cast<unsigned long long>(anon), static_cast<unsigned long long>(mapped),
                 static_cast<unsigned long long>(size), static_cast<unsigned long long>(dense_bytes));
}

}  // namespace

int main() {
    quiet_log();
    check::run("a failed read ends the decode with an error", a_failed_read_ends_the_decode_with_an_error);
    check::run("decoding goes on once the file is readable again", decoding_goes_on_once_the_file_is_readable_again);
    check::run("a failure amid overlap and speculation leaves nothing behind",
               a_failure_amid_overlap_and_speculation_leaves_nothing_behind);
    check::run("a model that does not load is reported", a_model_that_does_not_load_is_reported);
    check::run("a dry run puts expert matmuls on the device", a_dry_run_puts_expert_matmuls_on_the_device);
    check::run("the page cache stays clear of experts", the_page_cache_stays_clear_of_experts);
    return check::result();
}
