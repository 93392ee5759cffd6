#include "run.h"

#include "cache_size.h"
#include "decode.h"
#include "error.h"
#include "llama_session.h"
#include "memory_plan.h"
#include "model_facts.h"
#include "pager.h"
#include "process.h"
#include "report.h"
#include "sha256.h"
#include "telemetry.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace moe {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string read_prompt(const Options & options) {
    if (options.prompt) {
        return *options.prompt;
    }
    if (!options.prompt_file) {
        return "";
    }
    std::string text = read_file(*options.prompt_file, "prompt");
    if (text.empty()) {
        throw Error(ExitCode::usage, "--file: the prompt file '" + *options.prompt_file + "' is empty");
    }
    return text;
}

DensePolicy dense_policy(DenseWeights dense) {
    switch (dense) {
        case DenseWeights::warm: return DensePolicy::warm;
        case DenseWeights::anon: return DensePolicy::anon;
        case DenseWeights::mmap: break;
    }
    return DensePolicy::mmap;
}

PagerOptions pager_options(const Options & options, const ModelFacts & facts, uint64_t cache_bytes) {
    PagerOptions request;
    request.model_path = options.model;
    request.cache_bytes = cache_bytes;
    request.io_threads = options.io_threads;
    request.direct_io = options.direct_io;
    request.dense = dense_policy(options.dense_weights);
    request.expert_used = static_cast<uint32_t>(options.expert_used.value_or(0));
    request.n_batch = std::min(options.n_batch, options.n_ctx);
    request.n_threads = options.threads;
    request.arch = facts.arch;
    request.executor.overlap = options.overlap;
    request.executor.load_all = options.load_all;
    if (options.drop_cold_experts) {
        request.drop = DropRule{static_cast<float>(*options.drop_cold_experts), options.drop_renorm};
        request.drop_in_prefill = options.drop_in_prefill;
    }
    request.foresight.prefetch = static_cast<uint32_t>(options.prefetch);
    request.foresight.predict = options.predict_prefetch;
    request.foresight.speculate_max = static_cast<uint32_t>(options.predict_spec_max);
    request.foresight.horizon = static_cast<uint32_t>(options.predict_horizon);
    request.foresight.log = options.predict_log;
    request.foresight.drop_fraction = static_cast<float>(options.drop_cold_experts.value_or(0));
    request.forced_routes = options.forced_routes.value_or("");
    request.route_trace = options.route_trace.value_or("");
    request.io_trace = options.io_trace.value_or("");
    request.compute_trace = options.compute_trace.value_or("");
    request.compute_grain = options.compute_trace_by == ComputeTraceBy::layer ? ComputeTracer::Grain::layer
                                                                              : ComputeTracer::Grain::node;
    return request;
}

uint64_t auto_cache(const Options & options, const ModelFacts & facts, const std::string & prompt) {
    PagerOptions request = pager_options(options, facts, 0);
    request.route_trace.clear();
    request.io_trace.clear();
    request.compute_trace.clear();
    const std::unique_ptr<Pager> without_cache = Pager::open(request);
    const PagerInfo info = without_cache->info();
    const MemoryPlan plan = plan_memory(options, facts, prompt, without_cache.get());

    CacheAuto inputs;
    inputs.floor_bytes = options.cache_floor_mb << 20;
    inputs.ceil_bytes = options.cache_ceil_mb << 20;
    inputs.expert_bytes = uint64_t{info.n_keys} * info.slot_bytes;
    inputs.planned_bytes = plan.needed_bytes() - plan.arena_bytes;
    inputs.mapped_bytes = facts.dense_bytes - std::min(facts.dense_bytes, info.dense_anon_bytes);
    inputs.available_bytes = available_memory_bytes();
    inputs.data_limit_bytes = data_limit();
    inputs.cgroup_left_bytes = cgroup_left_bytes();
    return auto_cache_bytes(inputs);
}

std::unique_ptr<Pager> open_pager(const Options & options, const ModelFacts & facts, const std::string & prompt) {
    const uint64_t cache_bytes = options.cache_auto ? auto_cache(options, facts, prompt) : options.cache_mb << 20;
    std::unique_ptr<Pager> pager = Pager::open(pager_options(options, facts, cache_bytes));
    const PagerInfo info = pager->info();
    const uint64_t unit_bytes = info.cycle.bytes / info.cycle.slots;
    const std::optional<std::string> refusal = cliff_refusal(info.cycle, unit_bytes, cache_bytes, options.cache_auto);
    if (refusal && !options.force_cache) {
        throw Error(ExitCode::memory, *refusal);
    }
    return pager;
}

void check_experts_used(const Options & options, const ModelFacts & facts) {
    if (options.expert_used && static_cast<uint32_t>(*options.expert_used) > facts.n_expert) {
        throw Error(ExitCode::usage, "--expert-used: " + std::to_string(*options.expert_used) + " of " +
                                         std::to_string(facts.n_expert) + " experts");
    }
}

void check_context(const Options & options, uint64_t n_prompt) {
    if (n_prompt == 0) {
        throw Error(ExitCode::usage, "the prompt has no tokens");
    }
    if (n_prompt + static_cast<uint64_t>(options.n_predict) > options.n_ctx) {
        throw Error(ExitCode::usage, "a prompt of " + std::to_string(n_prompt) + " tokens and --predict " +
                                         std::to_string(options.n_predict) + " do not fit into --ctx-size " +
                                         std::to_string(options.n_ctx));
    }
}

// Whether the run can be done at all, once the length of its prompt is known.
void check_length(const Options & options, const Pager * pager, uint64_t n_prompt) {
    check_context(options, n_prompt);
    if (pager != nullptr && pager->forced_routes() != nullptr) {
        pager->forced_routes()->check_run(n_prompt, static_cast<uint64_t>(options.n_predict));
    }
}

// Opening truncates: never do that to the model.
void spare_model(const std::string & path, const char * what, const Options & options) {
    struct stat model {};
    struct stat output {};
    if (stat(options.model.c_str(), &model) == 0 && stat(path.c_str(), &output) == 0 &&
        model.st_dev == output.st_dev && model.st_ino == output.st_ino) {
        throw Error(ExitCode::usage, std::string("the ") + what + " file is the model");
    }
}

// The generated text, CSV, telemetry and progress: everything that is told per token.
class Outputs {
public:
    explicit Outputs(const Options & options) : progress_(options.progress), n_predict_(options.n_predict) {
        for (const auto & trace : {options.route_trace, options.io_trace, options.compute_trace}) {
            if (trace) {
                spare_model(*trace, "trace", options);
            }
        }
        if (options.csv) {
            spare_model(*options.csv, "CSV", options);
            csv_.emplace(*options.csv, "CSV");
            csv_->write(csv_header());
        }
        if (options.telemetry) {
            spare_model(*options.telemetry, "telemetry", options);
            telemetry_.emplace(*options.telemetry, "telemetry");
        }
    }

    void event(const std::string & line) {
        if (telemetry_) {
            telemetry_->write(line);
        }
    }

    void token(uint64_t index, llama_token id, const std::string & bytes, const CallCost & cost) {
        if (csv_) {
            csv_->write(csv_row(index, cost));
        }
        event(token_line(index, id, bytes, cost));
        if (progress_) {
            std::fprintf(stderr, "progress %llu %d %.3f\n", static_cast<unsigned long long>(index + 1), n_predict_,
                         cost.wall_ms);
        }
    }

    void close() {
        if (csv_) {
            csv_->close();
        }
        if (telemetry_) {
            telemetry_->close();
        }
    }

private:
    bool progress_;
    int32_t n_predict_;
    std::optional<LineFile> csv_;
    std::optional<LineFile> telemetry_;
};

// Resident anonymous memory only grows while the engine works; looking after each call finds its peak.
class AnonPeak {
public:
    void look() {
        const std::optional<uint64_t> now = anon_resident_bytes();
        if (now && (!peak_ || *now > *peak_)) {
            peak_ = now;
        }
    }
    std::optional<uint64_t> bytes() const { return peak_; }

private:
    std::optional<uint64_t> peak_;
};

int print_plan(const Options & options, const ModelFacts & facts, const std::string & prompt) {
    const std::unique_ptr<Pager> pager = options.moe_stream ? open_pager(options, facts, prompt) : nullptr;
    const MemoryPlan plan = plan_memory(options, facts, prompt, pager.get());
    if (plan.n_prompt) {
        check_length(options, pager.get(), *plan.n_prompt);
    }
    write_stdout(plan.json() + "\n");
    if (!plan.fits()) {
        throw Error(ExitCode::memory, plan.refusal());
    }
    return static_cast<int>(ExitCode::ok);
}

// Greedy decoding of up to n_predict tokens after the prompt has been evaluated.
void generate(const Options & options, const llama_vocab * vocab, Decoder & decoder, Outputs & outputs,
              AnonPeak & peak, SummaryReport & summary) {
    Sha256 ids;
    for (int32_t i = 0; i < options.n_predict; ++i) {
        const llama_token id = decoder.greedy();
        if (options.stop_at_eog && llama_vocab_is_eog(vocab, id)) {
            summary.stopped_by_eog = true;
            break;
        }
        const std::string bytes = token_bytes(vocab, id);
        const std::string id_line = std::to_string(id) + "\n";
        ids.update(id_line.data(), id_line.size());
        write_stdout(bytes);

        const CallCost cost = decoder.step(id);
        summary.decode += cost;
        outputs.token(summary.tokens, id, bytes, cost);
        ++summary.tokens;
        peak.look();
    }
    summary.ids_sha256 = ids.hex();
}

// The pager outlives the model, which its ranking thread reads: that ends first, also when a run fails.
struct ModelRelease {
    explicit ModelRelease(Pager * p) : pager(p) {}
    ~ModelRelease() {
        if (pager != nullptr) {
            pager->release_model();
        }
    }
    ModelRelease(const ModelRelease &) = delete;
    ModelRelease & operator=(const ModelRelease &) = delete;

    Pager * pager;
};

}  // namespace

int run(const Options & options) {
    install_llama_log();
    const std::string prompt = read_prompt(options);
    const ModelFacts facts = read_model_facts(options.model);
    check_experts_used(options, facts);
    if (options.plan_memory) {
        return print_plan(options, facts, prompt);
    }
    Outputs outputs(options);

    // Declared in the order of lifetimes: the pager and the thread pool outlive model and context.
    auto start = Clock::now();
    const std::unique_ptr<Pager> pager = options.moe_stream ? open_pager(options, facts, prompt) : nullptr;
    const double open_s = seconds_since(start);

    MemoryPlan plan;
    if (options.telemetry || data_limit()) {
        plan = plan_memory(options, facts, prompt, pager.get());
        if (!plan.fits()) {
            throw Error(ExitCode::memory, plan.refusal());
        }
        if (plan.n_prompt) {
            check_length(options, pager.get(), *plan.n_prompt);  // without loading the weights first
        }
    }

    start = Clock::now();
    const ThreadpoolPtr pool = make_threadpool(options.threads);
    const ModelPtr model = load_model(options, facts.arch, pager.get(), LoadDepth::full);
    const ModelRelease release(pager.get());
    if (pager) {
        pager->finish_loading(model.get());
        pager->set_threadpool(pool.get(), options.threads);
    }
    const ContextPtr context = make_context(model.get(), options);
    llama_attach_threadpool(context.get(), pool.get(), pool.get());

    SummaryReport summary;
    summary.load_s = open_s + seconds_since(start);

    const llama_vocab * vocab = llama_model_get_vocab(model.get());
    const std::vector<llama_token> tokens = tokenize(vocab, prompt);
    check_length(options, pager.get(), tokens.size());
    summary.n_prompt = tokens.size();

    const std::optional<PagerInfo> info = pager ? std::optional<PagerInfo>(pager->info()) : std::nullopt;
    if (options.telemetry) {
        outputs.event(start_line({options, facts, model.get(), info, pager ? pager->forced_routes() : nullptr, plan, summary.load_s}));
    }

    Decoder decoder(context.get(), pager.get());
    if (options.logits_digest) {
        decoder.start_digest();
    }
    AnonPeak peak;
    peak.look();
    summary.prefill = decoder.prefill(tokens);
    outputs.event(prefill_line(summary.n_prompt, summary.prefill));
    peak.look();

    if (pager) {
        summary.decode.paging.emplace();  // zero, not unmeasured, when the first token ends the text
    }
    generate(options, vocab, decoder, outputs, peak, summary);
    summary.logits_sha256 = decoder.digest();
    summary.anon_peak_bytes = peak.bytes();
    if (pager) {
        summary.prediction = pager->prediction();
        summary.watchdog = pager->watchdog();
        pager->close_traces();
    }
    outputs.event(summary_line(summary));
    outputs.close();
    if (summary.prediction != nullptr) {
        std::fputs(summary.prediction->table().c_str(), stderr);
    }
    return static_cast<int>(ExitCode::ok);
}

}  // namespace moe
