#include "planned_engine.h"

#include "cache_size.h"
#include "clock.h"
#include "error.h"
#include "process.h"

#include <algorithm>

namespace moe {

namespace {

DensePolicy dense_policy(DenseWeights dense) {
    switch (dense) {
        case DenseWeights::warm: return DensePolicy::warm;
        case DenseWeights::anon: return DensePolicy::anon;
        case DenseWeights::mmap: break;
    }
    return DensePolicy::mmap;
}

PagerOptions pager_options(const Options & options, const ModelFacts & facts) {
    PagerOptions request;
    request.model_path = options.model;
    request.cache_bytes = options.cache_mb << 20;
    request.evict = options.evict;
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
    request.stats = options.stats.value_or("");
    request.ram_budget_mb = options.ram_budget_mb;
    request.reserve_mb = options.reserve_mb;
    request.compute_grain = options.compute_trace_by == ComputeTraceBy::layer ? ComputeTracer::Grain::layer
                                                                              : ComputeTracer::Grain::node;
    return request;
}

std::unique_ptr<Pager> open_without_cache(PagerOptions request) {
    request.cache_bytes = 0;
    request.measure_only = true;
    return Pager::open(request);
}

uint64_t auto_cache(const Options & options, const ModelFacts & facts, const PagerInfo & info, const MemoryPlan & plan) {
    CacheAuto inputs;
    inputs.floor_bytes = options.cache_floor_mb << 20;
    inputs.ceil_bytes = options.cache_ceil_mb << 20;
    inputs.expert_bytes = info.whole_bytes;
    inputs.planned_bytes = plan.beside_arena_bytes();
    inputs.mapped_bytes = facts.dense_bytes - std::min(facts.dense_bytes, info.dense_anon_bytes);
    inputs.available_bytes = available_memory_bytes();
    inputs.data_limit_bytes = data_limit();
    inputs.cgroup_left_bytes = cgroup_left_bytes();
    return auto_cache_bytes(inputs);
}

void check_cliff(const Options & options, const PagerInfo & info, uint64_t cache_bytes) {
    const bool asked = options.cache_auto || cache_bytes != 0;  // else no reuse is meant
    if (asked && !info.holds_cycle && !options.force_cache) {
        throw Error(ExitCode::memory, cliff_refusal(info.cycle, info.cache_slots, cache_bytes, options.cache_auto));
    }
}

// A pager whose arena depends on what everything else takes.
PlannedEngine plan_sized_engine(const Options & options, const ModelFacts & facts, const std::string & prompt) {
    PlannedEngine planned;
    PagerOptions request = pager_options(options, facts);
    planned.pager = open_without_cache(request);
    const std::optional<DryRun> dry = dry_run(options, facts, prompt, planned.pager.get());
    const PagerInfo least = planned.pager->info();
    planned.plan = plan_memory(options, facts, dry, least);
    if (!dry) {
        planned.refusal = planned.plan->refusal();
        return planned;
    }
    if (options.cache_auto) {
        request.cache_bytes = auto_cache(options, facts, least, *planned.plan);
    } else {
        planned.budget = divide_budget(*options.ram_budget_bytes(), options.reserve_bytes(),
                                       planned.plan->beside_arena_bytes());
        planned.refusal = budget_refusal(*planned.budget, least.least_arena_bytes);
        if (planned.refusal) {
            planned.plan->arena_bytes = least.least_arena_bytes;
            return planned;
        }
        request.arena_bytes = planned.budget->arena_bytes();
    }
    const int64_t start = now_ns();
    planned.pager = Pager::open(request);
    planned.open_s = ns_to_ms(now_ns() - start) / 1000;
    if (options.cache_auto) {
        check_cliff(options, planned.pager->info(), request.cache_bytes);
    }
    planned.plan = plan_memory(options, facts, dry, planned.pager->info());
    return planned;
}

}  // namespace

PlannedEngine plan_engine(const Options & options, const ModelFacts & facts, const std::string & prompt) {
    PlannedEngine planned;
    if (options.cache_auto || options.ram_budget_mb) {
        planned = plan_sized_engine(options, facts, prompt);
    } else {
        if (options.moe_stream) {
            const int64_t start = now_ns();
            planned.pager = Pager::open(pager_options(options, facts));
            planned.open_s = ns_to_ms(now_ns() - start) / 1000;
            check_cliff(options, planned.pager->info(), options.cache_mb << 20);
        }
        if (options.telemetry || options.plan_memory || data_limit()) {
            const std::optional<PagerInfo> info =
                planned.pager ? std::optional<PagerInfo>(planned.pager->info()) : std::nullopt;
            planned.plan = plan_memory(options, facts, dry_run(options, facts, prompt, planned.pager.get()), info);
        }
    }
    if (planned.plan && !planned.plan->fits() && !planned.refusal) {
        planned.refusal = planned.plan->refusal();
    }
    return planned;
}

}  // namespace moe
