#include "run.h"

#include "anon_peak.h"
#include "decode.h"
#include "error.h"
#include "layer_dump.h"
#include "loaded_engine.h"
#include "outputs.h"
#include "perplexity.h"
#include "planned_engine.h"
#include "planned_texts.h"
#include "process.h"
#include "report.h"
#include "sha256.h"

#include <cstdio>

namespace moe {

namespace {

// The prompt, or the text to score; empty where neither is given.
std::string read_text(const Options & options) {
    if (options.ppl_file) {
        return read_scored_text(options);
    }
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

int print_plan(const Options & options, const ModelFacts & facts, const std::string & prompt) {
    const PlannedEngine planned = plan_engine(options, facts, prompt);
    if (planned.plan->n_prompt) {
        check_length(options, planned.pager.get(), *planned.plan->n_prompt);
    }
    write_stdout(planned.plan->json() + "\n");
    if (planned.refusal) {
        throw Error(ExitCode::memory, *planned.refusal);
    }
    return static_cast<int>(ExitCode::ok);
}

// Up to n_predict tokens after the prompt has been evaluated: the given ones, else the greedy choices.
void generate(const Options & options, const llama_vocab * vocab, const std::vector<llama_token> & given,
              Decoder & decoder, Outputs & outputs, AnonPeak & peak, SummaryReport & summary) {
    Sha256 ids;
    summary.stopped_by = "length";
    for (int32_t i = 0; i < options.n_predict; ++i) {
        const llama_token chosen = decoder.greedy();
        const llama_token id = options.given_text ? given[static_cast<size_t>(i)] : chosen;
        if (options.stop_at_eog && llama_vocab_is_eog(vocab, id)) {
            summary.stopped_by = "eog";
            break;
        }
        if (options.given_text) {
            summary.given->tokens += 1;
            summary.given->agreed += id == chosen ? 1 : 0;
            summary.given->nll += decoder.nll(id);
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

}  // namespace

int run(const Options & options) {
    install_llama_log();
    const std::string text = read_text(options);
    const ModelFacts facts = check_model(options);
    if (options.plan_memory) {
        return print_plan(options, facts, text);
    }
    Outputs outputs(options);
    std::optional<LayerDump> dump = open_dump(options, facts);
    const LoadedEngine engine = load_engine(options, facts, text, dump ? &*dump : nullptr);
    Pager * const pager = engine.pager.get();

    SummaryReport summary;
    summary.load_s = engine.load_s;
    const std::vector<llama_token> tokens = tokenize_input(engine.vocab(), options, text);
    check_length(options, pager, tokens.size());
    const std::vector<llama_token> given = read_given_text(options, engine.vocab());
    if (options.given_text) {
        summary.given.emplace();
    }

    const std::optional<PagerInfo> info = pager ? std::optional<PagerInfo>(pager->info()) : std::nullopt;
    if (options.telemetry) {
        outputs.event(start_line({options, facts, engine.model.get(), info, pager ? pager->forced_routes() : nullptr,
                                  engine.plan, engine.budget, summary.load_s}));
    }

    Decoder decoder(engine.context.get(), pager);
    if (options.logits_digest) {
        decoder.start_digest();
    }
    if (dump) {
        decoder.dump_to(*dump);
    }
    AnonPeak peak;
    peak.look();
    if (pager) {
        summary.decode.paging.emplace();  // zero, not unmeasured, when no token is generated
    }
    if (options.ppl_file) {
        const Perplexity perplexity =
            measure_perplexity(options, engine.vocab(), tokens, decoder, outputs, peak, summary.prefill);
        summary.n_prompt = perplexity.chunks * perplexity.n_ctx;
        summary.perplexity = perplexity;
        write_stdout(perplexity.line());
    } else {
        summary.n_prompt = tokens.size();
        summary.prefill = decoder.prefill(tokens);
        outputs.event(prefill_line(summary.n_prompt, summary.prefill));
        peak.look();
        generate(options, engine.vocab(), given, decoder, outputs, peak, summary);
    }
    summary.logits_sha256 = decoder.digest();
    summary.anon_peak_bytes = peak.bytes();
    if (pager) {
        summary.prediction = pager->prediction();
        summary.watchdog = pager->watchdog();
        pager->close_traces();
    }
    if (dump) {
        dump->close();
    }
    outputs.event(summary_line(summary));
    outputs.close();
    if (summary.prediction != nullptr) {
        std::fputs(summary.prediction->table().c_str(), stderr);
    }
    return static_cast<int>(ExitCode::ok);
}

}  // namespace moe
