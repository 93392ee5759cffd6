#include "loaded_engine.h"

#include "cache_size.h"
#include "error.h"
#include "process.h"

#include <algorithm>
#include <chrono>

namespace moe {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

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

}  // namespace

ModelFacts check_model(const Options & options) {
    ModelFacts facts = read_model_facts(options.model);
    if (options.expert_used && static_cast<uint32_t>(*options.expert_used) > facts.n_expert) {
        throw Error(ExitCode::usage, "--expert-used: " + std::to_string(*options.expert_used) + " of " +
                                         std::to_string(facts.n_expert) + " experts");
    }
    return facts;
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

void check_length(const Options & options, const Pager * pager, uint64_t n_prompt) {
    if (n_prompt == 0) {
        throw Error(ExitCode::usage, "the prompt has no tokens");
    }
    if (n_prompt + static_cast<uint64_t>(options.n_predict) > options.n_ctx) {
        throw Error(ExitCode::usage, "a prompt of " + std::to_string(n_prompt) + " tokens and --predict " +
                                         std::to_string(options.n_predict) + " do not fit into --ctx-size " +
                                         std::to_string(options.n_ctx));
    }
    if (pager != nullptr && pager->forced_routes() != nullptr) {
        pager->forced_routes()->check_run(n_prompt, static_cast<uint64_t>(options.n_predict));
    }
}

LoadedEngine load_engine(const Options & options, const ModelFacts & facts, const std::string & prompt) {
    LoadedEngine engine;
    auto start = Clock::now();
    if (options.moe_stream) {
        engine.pager = open_pager(options, facts, prompt);
    }
    Pager * const pager = engine.pager.get();
    engine.load_s = seconds_since(start);

    if (options.telemetry || data_limit()) {
        engine.plan = plan_memory(options, facts, prompt, pager);
        if (!engine.plan.fits()) {
            throw Error(ExitCode::memory, engine.plan.refusal());
        }
        if (engine.plan.n_prompt) {
            check_length(options, pager, *engine.plan.n_prompt);  // without loading the weights first
        }
    }

    start = Clock::now();
    engine.pool = make_threadpool(options.threads);
    engine.model = load_model(options, facts.arch, pager, LoadDepth::full);
    engine.model_in_use.reset(pager);
    if (pager) {
        pager->finish_loading(engine.model.get());
        pager->set_threadpool(engine.pool.get(), options.threads);
    }
    engine.context = make_context(engine.model.get(), options);
    llama_attach_threadpool(engine.context.get(), engine.pool.get(), engine.pool.get());
    engine.load_s += seconds_since(start);
    return engine;
}

}  // namespace moe
