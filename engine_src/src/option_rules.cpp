#include "option_rules.h"

#include "dump_files.h"
#include "error.h"

#include <algorithm>
#include <vector>

namespace moe {

namespace {

[[noreturn]] void refuse(const std::string & message) { throw Error(ExitCode::usage, message); }

using Names = std::vector<const char *>;

const Names paged_only = {
    "--overlap", "--cache-mb", "--cache-floor-mb", "--cache-ceil-mb", "--force-cache", "--evict", "--io-threads",
    "--no-odirect", "--load-all", "--prefetch", "--predict-prefetch", "--predict-spec-max",
    "--predict-horizon", "--predict-log", "--drop-cold-experts", "--drop-no-renorm", "--drop-in-prefill",
    "--route-trace", "--io-trace", "--compute-trace", "--compute-trace-by", "--stats", "--forced-routes"};

class Rules {
public:
    Rules(const Options & options, const GivenFlags & given) : o_(options), given_(given) {}

    void check() const {
        if (o_.version) {
            version_stands_alone();
            return;
        }
        model_and_prompt();
        if (o_.session) {
            session();
        }
        if (o_.ppl_file) {
            perplexity();
        } else if (o_.ppl_chunks) {
            refuse("--ppl-chunks needs --ppl-file FILE");
        }
        streaming();
        if (o_.plan_memory) {
            planning();
        }
        if (o_.ram_budget_mb) {
            budget();
        }
        cache();
        prediction();
        dropping();
        if (has("--compute-trace-by") && !o_.compute_trace) {
            refuse("--compute-trace-by needs --compute-trace FILE");
        }
        files();
        context_length();
    }

private:
    bool has(const char * name) const { return given_.count(name) > 0; }

    void version_stands_alone() const {
        for (const std::string & name : given_) {
            if (name != "--version") {
                refuse("--version stands alone: leave out " + name);
            }
        }
    }

    void model_and_prompt() const {
        if (!has("--model")) {
            refuse("--model FILE is required");
        }
        if (has("--prompt") && has("--file")) {
            refuse("--prompt and --file exclude each other");
        }
        // Planning needs no prompt, but one that is given must fit.
        if (!has("--prompt") && !has("--file") && !o_.session && !o_.ppl_file && !o_.plan_memory) {
            refuse("a prompt is required: --prompt TEXT or --file FILE, or --session, or --ppl-file FILE");
        }
        if (o_.prompt && o_.prompt->empty()) {
            refuse("--prompt: the text is empty");
        }
    }

    void session() const {
        for (const char * name : {"--prompt", "--file"}) {
            if (has(name)) {
                refuse(std::string(name) + " cannot be combined with --session: prompts come in on standard input");
            }
        }
        for (const char * name : {"--plan-memory", "--csv", "--telemetry", "--progress", "--logits-digest",
                                  "--route-trace", "--io-trace", "--compute-trace", "--forced-routes", "--given-text",
                                  "--moe-dump"}) {
            if (has(name)) {
                refuse(std::string(name) + " cannot be combined with --session: it is about one prompt");
            }
        }
    }

    // All of the text is evaluated in batches, as a prompt is.
    void perplexity() const {
        for (const char * name : {"--prompt", "--file", "--predict", "--session", "--given-text", "--no-eog",
                                  "--progress", "--csv", "--predict-log", "--predict-prefetch", "--forced-routes"}) {
            if (has(name)) {
                refuse(std::string(name) + " cannot be combined with --ppl-file: a text is scored, nothing is generated");
            }
        }
        if (o_.prefetch > 0) {
            refuse("--prefetch cannot be combined with --ppl-file: it reads ahead only while single tokens are decoded");
        }
        if (o_.drop_cold_experts && !o_.drop_in_prefill) {
            refuse("--drop-cold-experts needs --drop-in-prefill with --ppl-file: a text is evaluated as a prompt is");
        }
        if (o_.ppl_chunks && o_.plan_memory) {
            refuse("--ppl-chunks cannot be combined with --plan-memory: nothing is scored");
        }
        if (o_.n_ctx < 3) {
            refuse("--ppl-file needs a --ctx-size of 3 or more: of a chunk of two tokens none is scored");
        }
    }

    void streaming() const {
        if (o_.moe_stream) {
            if (o_.repack) {
                refuse(std::string("--repack cannot be combined with ") +
                       (has("--moe-stream") ? "--moe-stream" : "--ram-budget-mb") + ": paged experts are not repacked");
            }
            return;
        }
        for (const char * name : paged_only) {
            if (has(name)) {
                refuse(std::string(name) + " needs --moe-stream");
            }
        }
        if (o_.dense_weights != DenseWeights::mmap) {
            refuse(std::string("--dense-weights ") + (o_.dense_weights == DenseWeights::warm ? "warm" : "anon") +
                   " needs --moe-stream");
        }
    }

    void planning() const {
        for (const char * name : {"--csv", "--telemetry", "--progress", "--logits-digest", "--no-eog", "--given-text",
                                  "--predict-log", "--route-trace", "--io-trace", "--compute-trace",
                                  "--compute-trace-by", "--stats", "--moe-dump"}) {
            if (has(name)) {
                refuse(std::string(name) + " cannot be combined with --plan-memory: nothing is decoded");
            }
        }
    }

    void needs_cache(const char * name) const {
        if (!o_.has_cache()) {
            refuse(std::string(name) +
                   " needs a cache: add --cache-mb N with N > 0, or --cache-mb auto, or --ram-budget-mb N");
        }
    }

    void budget() const {
        for (const char * name : {"--cache-mb", "--cache-floor-mb", "--cache-ceil-mb", "--force-cache"}) {
            if (has(name)) {
                refuse(std::string(name) + " cannot be combined with --ram-budget-mb: the budget sizes the arena");
            }
        }
        if (o_.load_all) {
            refuse("--load-all cannot be combined with --ram-budget-mb: it uses no cache, and a budget is there to size one");
        }
        if (o_.forced_routes) {
            refuse("--forced-routes cannot be combined with --ram-budget-mb: the trace's cache counts in bytes of its own "
                   "model; give --cache-mb N");
        }
    }

    void cache() const {
        if (o_.reserve_mb && !o_.ram_budget_mb) {
            refuse("--reserve-mb needs --ram-budget-mb N: only a budget leaves an arena beside the reserve");
        }
        for (const char * name : {"--cache-floor-mb", "--cache-ceil-mb"}) {
            if (has(name) && !o_.cache_auto) {
                refuse(std::string(name) + " needs --cache-mb auto: a fixed size has no bounds to find");
            }
        }
        if (o_.force_cache && o_.cache_mb == 0) {
            refuse("--force-cache needs --cache-mb N with N > 0: it accepts a size that is too small");
        }
        if (o_.cache_auto && o_.forced_routes) {
            refuse("--cache-mb auto cannot be combined with --forced-routes: auto sizes a cache for this machine, the "
                   "trace counts in bytes of its own model; give --cache-mb N");
        }
        if (has("--evict")) {
            needs_cache("--evict");
        }
        if (o_.load_all && o_.has_cache()) {
            refuse("--load-all needs --cache-mb 0: it reads every expert again at each use");
        }
        if (o_.load_all && o_.overlap) {
            refuse("--load-all cannot be combined with --overlap: nothing is resident that could compute meanwhile");
        }
    }

    void prediction() const {
        if (o_.prefetch > 0) {
            if (o_.predict_prefetch) {
                refuse("--prefetch cannot be combined with --predict-prefetch: choose one source of read-ahead");
            }
            needs_cache("--prefetch");
        }
        if (o_.predict_prefetch) {
            needs_cache("--predict-prefetch");
        }
        for (const char * name : {"--predict-spec-max", "--predict-horizon"}) {
            if (has(name) && !o_.predict_prefetch) {
                refuse(std::string(name) + " needs --predict-prefetch");
            }
        }
        for (const char * name : {"--predict-prefetch", "--predict-log"}) {
            if (has(name) && o_.forced_routes) {
                refuse(std::string(name) + " cannot be combined with --forced-routes: the router's choice, which it " +
                       "predicts, is overridden");
            }
        }
    }

    void dropping() const {
        if (o_.drop_cold_experts) {
            needs_cache("--drop-cold-experts");
        }
        for (const char * name : {"--drop-no-renorm", "--drop-in-prefill"}) {
            if (has(name) && !o_.drop_cold_experts) {
                refuse(std::string(name) + " needs --drop-cold-experts F");
            }
        }
    }

    // Opening an output truncates it, so each needs a file of its own, and none may be one that is read. This looks at
    // no file: what is one under two names, or is the model, is noticed where outputs are opened (outputs.cpp).
    void files() const {
        struct Named {
            const char * flag;
            std::optional<std::string> path;
        };
        const std::vector<Named> read = {{"--file", o_.prompt_file}, {"--forced-routes", o_.forced_routes},
                                         {"--given-text", o_.given_text}, {"--ppl-file", o_.ppl_file}};
        std::vector<Named> written = {{"--csv", o_.csv},
                                            {"--telemetry", o_.telemetry},
                                            {"--route-trace", o_.route_trace},
                                            {"--io-trace", o_.io_trace},
                                            {"--compute-trace", o_.compute_trace},
                                            {"--stats", o_.stats}};
        if (o_.moe_dump) {
            for (const std::string & path : dump_paths(*o_.moe_dump)) {
                written.push_back({"--moe-dump", path});
            }
        }
        for (size_t i = 0; i < written.size(); ++i) {
            if (!written[i].path) {
                continue;
            }
            const auto differs = [&](const Named & other) {
                if (other.path == written[i].path) {
                    refuse(std::string(other.flag) + " and " + written[i].flag +
                           " name the same file: give each its own");
                }
            };
            std::for_each(read.begin(), read.end(), differs);
            std::for_each(written.begin(), written.begin() + static_cast<std::ptrdiff_t>(i), differs);
        }
    }

    void context_length() const {
        // One prompt token at least; the exact check follows once the prompt is tokenised.
        const bool asked = !(o_.plan_memory || o_.session || o_.ppl_file) || has("--predict");
        if (asked && static_cast<uint64_t>(o_.n_predict) + 1 > o_.n_ctx) {
            refuse("--predict " + std::to_string(o_.n_predict) + " and a prompt do not fit into --ctx-size " +
                   std::to_string(o_.n_ctx));
        }
    }

    const Options & o_;
    const GivenFlags & given_;
};

}  // namespace

bool is_pager_flag(const std::string & name) {
    return name == "--moe-stream" || name == "--ram-budget-mb" || name == "--reserve-mb" ||
           std::find(paged_only.begin(), paged_only.end(), name) != paged_only.end();
}

void check_combinations(const Options & options, const GivenFlags & given) { Rules(options, given).check(); }

}  // namespace moe
