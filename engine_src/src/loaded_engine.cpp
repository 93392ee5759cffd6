#include "loaded_engine.h"

#include "error.h"
#include "perplexity.h"
#include "planned_engine.h"

#include <chrono>
#include <utility>

namespace moe {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

ModelFacts check_model(const Options & options) {
    ModelFacts facts = read_model_facts(options.model);
    if (options.expert_used && static_cast<uint32_t>(*options.expert_used) > facts.n_expert) {
        throw Error(ExitCode::usage, "--expert-used: " + std::to_string(*options.expert_used) + " of " +
                                         std::to_string(facts.n_expert) + " experts");
    }
    return facts;
}

void check_length(const Options & options, const Pager * pager, uint64_t n_prompt) {
    if (options.ppl_file) {
        check_scored_length(options, n_prompt);
        return;
    }
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

LoadedEngine load_engine(const Options & options, const ModelFacts & facts, const std::string & prompt,
                         NodeWatcher * watcher) {
    PlannedEngine planned = plan_engine(options, facts, prompt);
    if (planned.refusal) {
        throw Error(ExitCode::memory, *planned.refusal);
    }
    if (planned.plan && planned.plan->n_prompt) {
        check_length(options, planned.pager.get(), *planned.plan->n_prompt);  // without loading the weights first
    }
    LoadedEngine engine;
    engine.pager = std::move(planned.pager);
    engine.plan = planned.plan.value_or(MemoryPlan());
    engine.budget = planned.budget;
    Pager * const pager = engine.pager.get();

    const auto start = Clock::now();
    engine.pool = make_threadpool(options.threads);
    engine.model = load_model(options, facts.arch, pager, LoadDepth::full);
    engine.model_in_use.reset(pager);
    if (pager) {
        pager->finish_loading(engine.model.get());
        pager->set_threadpool(engine.pool.get(), options.threads);
        pager->watch(watcher);
    }
    // Watched by the pager when it computes: were the scheduler to cut the graph, the pager would not see it whole.
    engine.context = make_context(engine.model.get(), options, pager ? nullptr : watcher);
    llama_attach_threadpool(engine.context.get(), engine.pool.get(), engine.pool.get());
    engine.load_s = planned.open_s + seconds_since(start);
    return engine;
}

}  // namespace moe
