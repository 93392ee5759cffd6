#include "session.h"

#include "clock.h"
#include "decode.h"
#include "error.h"
#include "loaded_engine.h"
#include "outputs.h"
#include "planned_texts.h"
#include "process.h"
#include "session_input.h"
#include "session_protocol.h"
#include "utf8.h"

#include <unistd.h>

#include <cstdio>
#include <exception>

namespace moe {

namespace {

void answer(const std::string & line) { write_stdout(line + "\n"); }

class Session {
public:
    Session(const Options & options, const LoadedEngine & engine)
        : options_(options), engine_(engine), pager_(engine.pager.get()), decoder_(engine.context.get(), pager_),
          most_prompt_bytes_(longest_prompt_bytes(engine.vocab(), options.n_ctx)) {}

    void generate(const GenerateRequest & request, const std::atomic<bool> & cancelled);

private:
    // Why the request cannot be served; empty when it can.
    std::string refusal(size_t n_prompt, int32_t n_predict, uint64_t n_past) const;
    SessionCache cache() const;

    const Options & options_;
    const LoadedEngine & engine_;
    Pager * const pager_;
    Decoder decoder_;
    const uint64_t most_prompt_bytes_;
};

std::string Session::refusal(size_t n_prompt, int32_t n_predict, uint64_t n_past) const {
    if (n_prompt == 0) {
        return "the prompt has no tokens";
    }
    if (n_past + n_prompt + static_cast<uint64_t>(n_predict) > options_.n_ctx) {
        return "context overflow: " + std::to_string(n_past) + " tokens so far, a prompt of " +
               std::to_string(n_prompt) + " and n_predict " + std::to_string(n_predict) +
               " do not fit into --ctx-size " + std::to_string(options_.n_ctx);
    }
    return "";
}

SessionCache Session::cache() const {
    SessionCache cache;
    if (pager_ && options_.has_cache()) {
        const PagerCounters counters = pager_->counters();
        if (counters.requests > 0) {
            cache.hit_pct = 100.0 * static_cast<double>(counters.hits) / static_cast<double>(counters.requests);
        }
        cache.resident_bytes = counters.resident_bytes;
        cache.budget_bytes = pager_->info().capacity_bytes;
    }
    return cache;
}

void Session::generate(const GenerateRequest & request, const std::atomic<bool> & cancelled) {
    const uint64_t n_before = request.clear_kv ? 0 : decoder_.n_past();
    if (request.prompt.size() > most_prompt_bytes_) {
        answer(session_error_line(request.id, false, "context overflow: a prompt of " + std::to_string(request.prompt.size()) +
                                                         " bytes has more tokens than --ctx-size " +
                                                         std::to_string(options_.n_ctx)));
        return;
    }
    const std::vector<llama_token> prompt = tokenize(
        engine_.vocab(), request.prompt, n_before == 0 ? TextPlace::beginning : TextPlace::continuation);
    const int32_t n_predict = request.n_predict.value_or(options_.n_predict);
    const std::string refused = refusal(prompt.size(), n_predict, n_before);
    if (!refused.empty()) {
        answer(session_error_line(request.id, false, refused));
        return;
    }

    answer(begin_line(request.id));
    if (request.clear_kv) {
        decoder_.restart();
    }
    SessionDone done;
    done.id = request.id;
    done.load_s = engine_.load_s;
    if (pager_) {
        done.prefill.paging.emplace();  // zero, not unmeasured, where nothing is evaluated
        done.decode.paging.emplace();
    }
    done.prefill += decoder_.prefill(prompt, &cancelled);
    done.n_prompt = decoder_.n_past() - n_before;

    const int64_t start = now_ns();
    const auto ends_text = [&](llama_token token) {
        return options_.stop_at_eog && llama_vocab_is_eog(engine_.vocab(), token);
    };
    Utf8Cutter cutter;
    llama_token next = 0;
    // Whether a token is the last is known before its text is sent: half a character is held back only if more follows.
    bool more = !cancelled && !ends_text(next = decoder_.greedy());
    while (more) {
        const std::string bytes = token_bytes(engine_.vocab(), next);
        SessionProgress progress;
        progress.cost = decoder_.step(next);
        done.decode += progress.cost;
        progress.step = ++done.tokens;
        progress.steps = n_predict;
        progress.cache_hit_pct = cache().hit_pct;
        more = done.tokens < static_cast<uint64_t>(n_predict) && !cancelled && !ends_text(next = decoder_.greedy());
        progress.delta_text = more ? cutter.take(bytes) : cutter.take_last(bytes);
        done.text += progress.delta_text;
        answer(progress_line(progress));
    }
    done.loop_ms = ns_to_ms(now_ns() - start);
    done.cancelled = cancelled;
    done.n_past = decoder_.n_past();
    done.cache = cache();
    answer(done_line(done));
}

// For what no answer has a field: on stderr.
void tell_predictions(const Pager & pager) {
    if (pager.prediction() != nullptr) {
        std::fputs(pager.prediction()->table().c_str(), stderr);
    }
    if (pager.watchdog() != nullptr && !pager.watchdog()->armed()) {
        std::fprintf(stderr, "moe-engine: --predict-prefetch was disarmed: %s\n", pager.watchdog()->json().c_str());
    }
}

// `id`: of the request that is served.
void serve(const Options & options, uint64_t & id) {
    install_llama_log();
    const ModelFacts facts = check_model(options);
    check_outputs(options);
    const LoadedEngine engine = load_engine(options, facts, "");
    Session session(options, engine);
    SessionInput input(STDIN_FILENO);
    SessionReady ready;
    ready.load_s = engine.load_s;
    ready.arch = facts.arch;
    ready.n_ctx = options.n_ctx;
    ready.n_expert_used = options.expert_used ? static_cast<uint32_t>(*options.expert_used) : facts.n_expert_used;
    answer(ready_line(ready));

    for (;;) {
        const SessionInput::Event event = input.next();
        if (const auto * end = std::get_if<SessionInput::End>(&event)) {
            id = 0;
            if (!end->failure.empty()) {
                throw Error(ExitCode::io, end->failure);
            }
            break;
        }
        if (const auto * bad = std::get_if<BadRequest>(&event)) {
            answer(session_error_line(bad->id, false, bad->why));
            continue;
        }
        const auto & generation = std::get<SessionInput::Generation>(event);
        id = generation.request.id;
        session.generate(generation.request, *generation.cancelled);
    }
    if (engine.pager) {
        engine.pager->close_traces();
        tell_predictions(*engine.pager);
    }
}

}  // namespace

int run_session(const Options & options) {
    uint64_t id = 0;
    try {
        serve(options, id);
    } catch (const std::exception & error) {
        try {
            answer(session_error_line(id, true, error.what()));
        } catch (const Error &) {
            // Nobody listens any more; the exit code still tells.
        }
        throw;
    }
    return static_cast<int>(ExitCode::ok);
}

}  // namespace moe
