// Whole decodes of tiny models: every logit of a paged run must have the bits of a plain run.
#include "decoding.h"

using namespace decoding;

namespace {

// Every arena size with every way to read, and with one thread or two. Two are tried with two arenas only: ggml's threads
// wait for each other by spinning, which takes minutes where the cores are busy with something else.
void equals_plain(const tiny::Model & m, int most_threads = 1) {
    const TempDir dir;
    const std::string path = tiny::write(m, dir.file("m"));
    const uint64_t n_keys = uint64_t{m.n_layer} * m.n_expert;
    const uint64_t slot = slot_bytes(path);
    for (int threads = 1; threads <= most_threads; ++threads) {
        const Run plain = run_plain(path, threads);
        std::optional<uint64_t> requests;
        for (const uint64_t slots : {uint64_t{0}, uint64_t{m.n_expert_used}, uint64_t{5}, n_keys / 2 + 1, n_keys}) {
            for (const bool direct : {true, false}) {
                for (const DensePolicy dense : {DensePolicy::mmap, DensePolicy::anon}) {
                    const bool tried_with_two = direct && (slots == 5) == (dense == DensePolicy::anon) && (slots == 0 || slots == 5);
                    // Which threads touch what is the same however the dense weights come into memory.
                    const bool left_out = kNarrow && direct != (dense == DensePolicy::anon);
                    if (threads == 2 ? !tried_with_two : left_out) {
                        continue;
                    }
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
                    check_counters(paged, n_keys, m.n_parts());
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

// An output matrix of its own is one thing that differs between models; a width that fills no whole block another:
// then every expert starts elsewhere in its first block.
void odd_shapes_equal_plain() {
    tiny::Model m = model(GGML_TYPE_Q8_0, 2);
    m.n_ff_exp = 96;
    m.tied_output = true;
    m.dense_type = GGML_TYPE_Q8_0;
    equals_plain(m);
}

void fused_gate_and_up_equal_plain() {
    tiny::Model m = model(GGML_TYPE_Q4_K, 2);
    m.arch = tiny::Arch::hy_v3;
    equals_plain(m);
}

void biased_experts_equal_plain() {
    tiny::Model m = model(GGML_TYPE_Q8_0, 2);
    m.arch = tiny::Arch::gpt_oss;
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
    tiny::Model m = model(GGML_TYPE_Q8_0, 40);
    m.n_expert = 32;
    m.n_expert_used = 8;
    m.n_ff_exp = 32;
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

}  // namespace

int main() {
    quiet_log();
    check::run("one slot is enough", one_slot_is_enough);
    check::run("F16 experts equal plain", [] { equals_plain(model(GGML_TYPE_F16, 2), 2); });
    check::run("Q8_0 experts equal plain", [] { equals_plain(model(GGML_TYPE_Q8_0, 4), 2); });
    check::run("Q4_K experts equal plain", [] { equals_plain(model(GGML_TYPE_Q4_K, 2), 2); });
    check::run("two shards equal plain", [] { equals_plain(model(GGML_TYPE_Q4_K, 2, 2)); });
    check::run("odd shapes equal plain", odd_shapes_equal_plain);
    check::run("fused gate and up equal plain", fused_gate_and_up_equal_plain);
    check::run("biased experts equal plain", biased_experts_equal_plain);
    check::run("slots far apart equal plain", slots_far_apart_equal_plain);
    check::run("residents give way to a batch that does not fit", residents_give_way_to_a_batch_that_does_not_fit);
    check::run("an override of top-k sizes the smallest arena", an_override_of_top_k_sizes_the_smallest_arena);
    check::run("pagers do not disturb each other", pagers_do_not_disturb_each_other);
    return check::result();
}
