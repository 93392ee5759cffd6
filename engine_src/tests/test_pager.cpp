// Whole decodes of tiny models: every logit of a paged run must have the bits of a plain run.
#include "error.h"
#include "pager.h"

#include "check.h"
#include "temp_dir.h"
#include "tiny_model.h"

#include "ggml-cpu.h"
#include "llama-ext.h"
#include "llama.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

using namespace moe;

namespace {

constexpr int kPrompt = 45;
constexpr int kDecode = 24;
constexpr int kBatch = 30;  // so that the prompt takes two batches
constexpr uint64_t kParts = 3;

struct Deleter {
    void operator()(llama_model * m) const { llama_model_free(m); }
    void operator()(llama_context * c) const { llama_free(c); }
    void operator()(ggml_threadpool * t) const { ggml_threadpool_free(t); }
};
using ModelPtr = std::unique_ptr<llama_model, Deleter>;
using ContextPtr = std::unique_ptr<llama_context, Deleter>;
using PoolPtr = std::unique_ptr<ggml_threadpool, Deleter>;

struct Run {
    std::vector<float> logits;  // of every token of prompt and continuation
    std::vector<llama_token> tokens;
    PagerInfo info;
    PagerCounters counters;
    int failed_at = -1;  // decode call that returned an error
    std::optional<Error> error;
};

ContextPtr make_context(llama_model * model, int n_threads) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 256;
    params.n_batch = params.n_ubatch = kBatch;
    params.n_threads = params.n_threads_batch = n_threads;
    return ContextPtr(llama_init_from_model(model, params));
}

// Decodes `tokens` and appends all their logits. The return value is llama_decode's.
int decode(llama_context * context, const std::vector<llama_token> & tokens, int first_pos, Run & run) {
    llama_batch batch = llama_batch_init(static_cast<int32_t>(tokens.size()), 0, 1);
    for (size_t i = 0; i < tokens.size(); ++i) {
        batch.token[i] = tokens[i];
        batch.pos[i] = first_pos + static_cast<int>(i);
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    batch.n_tokens = static_cast<int32_t>(tokens.size());
    const int rc = llama_decode(context, batch);
    llama_batch_free(batch);
    if (rc == 0) {
        const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context)));
        for (size_t i = 0; i < tokens.size(); ++i) {
            const float * row = llama_get_logits_ith(context, static_cast<int32_t>(i));
            run.logits.insert(run.logits.end(), row, row + n_vocab);
        }
        run.tokens.push_back(static_cast<llama_token>(
            std::max_element(run.logits.end() - n_vocab, run.logits.end()) - (run.logits.end() - n_vocab)));
    }
    return rc;
}

// `spoil` runs before each decode call, numbered from 0.
template <typename Spoil>
void generate(llama_context * context, Run & run, const Spoil & spoil) {
    std::vector<llama_token> prompt;
    for (int i = 0; i < kPrompt; ++i) {
        prompt.push_back((i * 37 + 11) % 256);
    }
    int call = 0;
    const auto step = [&](const std::vector<llama_token> & tokens, int pos) {
        spoil(call);
        if (decode(context, tokens, pos, run) != 0) {
            run.failed_at = call;
            return false;
        }
        ++call;
        return true;
    };
    for (int pos = 0; pos < kPrompt; pos += kBatch) {
        const auto last = prompt.begin() + std::min(pos + kBatch, kPrompt);
        if (!step({prompt.begin() + pos, last}, pos)) {
            return;
        }
    }
    for (int i = 0; i < kDecode; ++i) {
        if (!step({run.tokens.back()}, kPrompt + i)) {
            return;
        }
    }
}

Run run_plain(const std::string & path, int n_threads) {
    llama_model_params params = llama_model_default_params();
    params.load_mode = LLAMA_LOAD_MODE_MMAP;
    params.use_extra_bufts = false;
    const ModelPtr model(llama_model_load_from_file(path.c_str(), params));
    const ContextPtr context = make_context(model.get(), n_threads);
    Run run;
    generate(context.get(), run, [](int) {});
    return run;
}

template <typename Spoil>
Run run_paged(const PagerOptions & options, int n_threads, bool share_pool, const Spoil & spoil) {
    Run run;
    const PoolPtr pool = [&] {
        ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
        return PoolPtr(share_pool ? ggml_threadpool_new(&params) : nullptr);
    }();
    const std::unique_ptr<Pager> pager = Pager::open(options);
    llama_model_params params = llama_model_default_params();
    pager->configure(params);
    const ModelPtr model(llama_model_load_from_file(options.model_path.c_str(), params));
    pager->finish_loading(model.get());
    const ContextPtr context = make_context(model.get(), n_threads);
    if (pool) {
        llama_attach_threadpool(context.get(), pool.get(), nullptr);
        pager->set_threadpool(pool.get(), n_threads);
    }
    generate(context.get(), run, spoil);
    run.info = pager->info();
    run.counters = pager->counters();
    run.error = pager->last_error();
    return run;
}

Run run_paged(const PagerOptions & options, int n_threads = 1, bool share_pool = false) {
    return run_paged(options, n_threads, share_pool, [](int) {});
}

bool same_bits(const Run & a, const Run & b) {
    return !a.logits.empty() && a.logits.size() == b.logits.size() && a.tokens == b.tokens &&
           std::memcmp(a.logits.data(), b.logits.data(), a.logits.size() * sizeof(float)) == 0;
}

uint64_t slot_bytes(const std::string & path) {
    PagerOptions options;
    options.model_path = path;
    return Pager::open(options)->info().slot_bytes;
}

void check_counters(const Run & run, uint64_t n_keys) {
    const PagerCounters & c = run.counters;
    CHECK(c.requests == c.hits + c.misses);
    CHECK(c.reads == c.misses * kParts);
    const uint64_t wanted = c.misses * run.info.expert_bytes_max;
    CHECK(run.info.direct_io ? c.read_bytes >= wanted && c.read_bytes % 4096 == 0 : c.read_bytes == wanted);
    CHECK(c.evictions <= c.misses);
    CHECK(c.io_ms > 0 && c.stall_ms > 0 && c.manage_ms > 0);
    CHECK(run.info.arena_bytes == run.info.slots * run.info.slot_bytes);
    CHECK(run.info.expert_bytes == n_keys * run.info.expert_bytes_max);
}

// All combinations of a model: where the arena is, how it is read, where the dense weights are, how many threads.
void equals_plain(const tiny::Model & m) {
    const TempDir dir;
    const std::string path = tiny::write(m, dir.file("m"));
    const uint64_t n_keys = uint64_t{m.n_layer} * m.n_expert;
    const uint64_t slot = slot_bytes(path);
    for (const int threads : {1, 2}) {
        const Run plain = run_plain(path, threads);
        std::optional<uint64_t> requests;
        for (const uint64_t slots : {uint64_t{0}, uint64_t{m.n_expert_used}, uint64_t{5}, n_keys / 2 + 1, n_keys}) {
            for (const bool direct : {true, false}) {
                for (const DensePolicy dense : {DensePolicy::mmap, DensePolicy::anon}) {
                    PagerOptions options;
                    options.model_path = path;
                    options.cache_bytes = slots * slot;
                    options.direct_io = direct;
                    options.dense = dense;
                    options.io_threads = direct ? 4 : 1;
                    const Run paged = run_paged(options, threads, threads == 2);
                    const PagerCounters & c = paged.counters;
                    CHECK(same_bits(plain, paged));
                    CHECK(!paged.error);
                    CHECK(paged.info.direct_io == direct || !direct);
                    CHECK(paged.info.slots == std::max<uint64_t>(slots, m.n_expert_used));
                    check_counters(paged, n_keys);
                    CHECK(c.requests == requests.value_or(c.requests));
                    requests = c.requests;
                    if (slots == 0) {
                        CHECK(c.hits == 0);
                        CHECK(c.misses == c.requests);
                    } else if (slots < n_keys / 2) {
                        CHECK(c.evictions > 0);
                    } else if (slots == n_keys) {
                        CHECK(c.evictions == 0);
                        CHECK(c.hits > 0);
                        CHECK(c.misses <= n_keys);
                    }
                }
            }
        }
    }
}

tiny::Model model(ggml_type type, uint32_t n_layer, uint32_t n_shards = 1) {
    tiny::Model m;
    m.expert_type = type;
    m.n_layer = n_layer;
    m.n_shards = n_shards;
    return m;
}

// An output matrix of its own is one thing that differs between models; a width that fills no whole block another:
// then every expert starts elsewhere in its first block.
void odd_shapes_equal_plain() {
    tiny::Model m = model(GGML_TYPE_Q8_0, 2);
    m.n_ff_exp = 96;
    m.tied_output = true;
    m.dense_type = GGML_TYPE_Q8_0;
    equals_plain(m);
}

void one_slot_is_enough() {
    tiny::Model m = model(GGML_TYPE_Q4_K, 2);
    m.n_expert_used = 1;
    const TempDir dir;
    PagerOptions options;
    options.model_path = tiny::write(m, dir.file("m"));
    const Run paged = run_paged(options);
    CHECK(paged.info.slots == 1);
    CHECK(same_bits(run_plain(options.model_path, 1), paged));
    check_counters(paged, 16);
}

// The batch after the first finds residents of its own layer, more of them than may stay.
void residents_give_way_to_a_batch_that_does_not_fit() {
    tiny::Model m = model(GGML_TYPE_F16, 1);
    m.n_expert = 16;
    const TempDir dir;
    PagerOptions options;
    options.model_path = tiny::write(m, dir.file("m"));
    options.cache_bytes = 6 * slot_bytes(options.model_path);

    llama_model_params params = llama_model_default_params();
    const auto rounds = [](llama_context * context) {
        Run run;
        for (int round = 0; round < 2; ++round) {
            const int pos = round * 40;
            std::vector<llama_token> batch;
            for (int i = 0; i < kBatch; ++i) {
                batch.push_back((i * 53 + round) % 256);
            }
            CHECK(decode(context, batch, pos, run) == 0);
            for (int i = kBatch; i < 40; ++i) {
                CHECK(decode(context, {i * 7 % 256}, pos + i, run) == 0);
            }
        }
        return run;
    };
    params.use_extra_bufts = false;
    const ModelPtr plain_model(llama_model_load_from_file(options.model_path.c_str(), params));
    const Run plain = rounds(make_context(plain_model.get(), 1).get());

    const std::unique_ptr<Pager> pager = Pager::open(options);
    pager->configure(params);
    const ModelPtr paged_model(llama_model_load_from_file(options.model_path.c_str(), params));
    pager->finish_loading(paged_model.get());
    Run paged = rounds(make_context(paged_model.get(), 1).get());
    paged.info = pager->info();
    paged.counters = pager->counters();
    CHECK(same_bits(plain, paged));
    CHECK(paged.counters.hits > 0);
    check_counters(paged, 16);
}

// Many slots, long batches: the matmul takes the slots in several runs.
void slots_far_apart_equal_plain() {
    tiny::Model m = model(GGML_TYPE_Q4_K, 40);
    m.n_expert = 32;
    m.n_expert_used = 8;
    m.n_ff_exp = 256;
    const TempDir dir;
    PagerOptions options;
    options.model_path = tiny::write(m, dir.file("m"));
    options.cache_bytes = UINT64_MAX;
    const Run paged = run_paged(options);
    CHECK(paged.info.slots == 40 * 32);
    CHECK(same_bits(run_plain(options.model_path, 1), paged));
}

void an_override_of_top_k_sizes_the_smallest_arena() {
    const TempDir dir;
    PagerOptions options;
    options.model_path = tiny::write(model(GGML_TYPE_F16, 2), dir.file("m"));
    options.expert_used = 5;
    CHECK(Pager::open(options)->info().slots == 5);
    options.expert_used = 1;
    CHECK(Pager::open(options)->info().slots == 1);
    options.expert_used = 99;
    CHECK(Pager::open(options)->info().slots == 8);
}

// A second context, and a second model, each with experts of their own.
void pagers_do_not_disturb_each_other() {
    const TempDir dir;
    tiny::Model m = model(GGML_TYPE_Q8_0, 2);
    PagerOptions options[2];
    std::unique_ptr<Pager> pagers[2];
    ModelPtr models[2];
    ContextPtr contexts[2];
    Run runs[2];
    for (int i = 0; i < 2; ++i) {
        m.seed = static_cast<uint32_t>(i) + 7;
        options[i].model_path = tiny::write(m, dir.file("m" + std::to_string(i)));
        pagers[i] = Pager::open(options[i]);
        llama_model_params params = llama_model_default_params();
        pagers[i]->configure(params);
        models[i].reset(llama_model_load_from_file(options[i].model_path.c_str(), params));
        pagers[i]->finish_loading(models[i].get());
        contexts[i] = make_context(models[i].get(), 1);
    }
    for (int i = 0; i < 2; ++i) {
        generate(contexts[i].get(), runs[i], [](int) {});
        CHECK(same_bits(run_plain(options[i].model_path, 1), runs[i]));
    }
    CHECK(!same_bits(runs[0], runs[1]));
}

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
    return 4096 * static_cast<uint64_t>(std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return p & 1; }));
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
    llama_log_set(
        [](ggml_log_level level, const char * text, void *) {
            if (level == GGML_LOG_LEVEL_ERROR) {
                std::fputs(text, stderr);
            }
        },
        nullptr);
    check::run("one slot is enough", one_slot_is_enough);
    check::run("F16 experts equal plain", [] { equals_plain(model(GGML_TYPE_F16, 2)); });
    check::run("Q8_0 experts equal plain", [] { equals_plain(model(GGML_TYPE_Q8_0, 3)); });
    check::run("Q4_K experts equal plain", [] { equals_plain(model(GGML_TYPE_Q4_K, 4)); });
    check::run("two shards equal plain", [] { equals_plain(model(GGML_TYPE_Q4_K, 2, 2)); });
    check::run("odd shapes equal plain", odd_shapes_equal_plain);
    check::run("slots far apart equal plain", slots_far_apart_equal_plain);
    check::run("residents give way to a batch that does not fit", residents_give_way_to_a_batch_that_does_not_fit);
    check::run("an override of top-k sizes the smallest arena", an_override_of_top_k_sizes_the_smallest_arena);
    check::run("pagers do not disturb each other", pagers_do_not_disturb_each_other);
    check::run("a failed read ends the decode with an error", a_failed_read_ends_the_decode_with_an_error);
    check::run("decoding goes on once the file is readable again", decoding_goes_on_once_the_file_is_readable_again);
    check::run("a model that does not load is reported", a_model_that_does_not_load_is_reported);
    check::run("a dry run puts expert matmuls on the device", a_dry_run_puts_expert_matmuls_on_the_device);
    check::run("the page cache stays clear of experts", the_page_cache_stays_clear_of_experts);
    return check::result();
}
