// --ppl-file: the arithmetic on known logits, the protocol against a second implementation of it, and what a run tells.
#include "decode.h"
#include "perplexity.h"

#include "check.h"
#include "decoding.h"
#include "engine_process.h"
#include "temp_dir.h"
#include "tiny_model.h"

#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace {

using Args = std::vector<std::string>;

constexpr uint64_t mebibyte = uint64_t{1} << 20;
constexpr int chunk_tokens = 40;
constexpr llama_token bos = 256;

const TempDir & dir() {
    static const TempDir directory;
    return directory;
}

std::string write_model(const char * name, bool add_bos) {
    tiny::Model model;
    model.n_layer = 3;
    model.n_expert = 16;
    model.n_expert_used = 3;
    model.expert_type = GGML_TYPE_Q4_K;
    model.dense_type = GGML_TYPE_Q8_0;
    model.add_bos = add_bos;
    if (decoding::kNarrow) {
        model.expert_type = GGML_TYPE_Q8_0;
        model.n_ff_exp = 64;
    }
    return tiny::write(model, dir().file(name));
}

const std::string & model_path() {
    static const std::string path = write_model("tiny", false);
    return path;
}

// Of this vocabulary a byte is a token. What looks like a special token is text too. 130 bytes: three chunks and a rest.
const std::string text = "The text says <|end|> and goes on: it was the best of times, it was the worst of times, it was "
                         "the age of wisdom, and so they said.";

const std::string & text_path() {
    static const std::string path = [] {
        const std::string file = dir().file("text.txt");
        std::ofstream{file} << text << '\n';
        return file;
    }();
    return path;
}

Args scoring(Args more) {
    Args args = {"-m", model_path(), "--ppl-file", text_path(), "-c", std::to_string(chunk_tokens), "-t", "1"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
}

EngineResult run(Args more) { return EngineProcess(scoring(std::move(more))).run(dir().file("run")); }

bool close_to(double a, double b, double relative) { return std::fabs(a - b) <= relative * std::fabs(b); }

void the_likelihood_of_known_logits() {
    const std::vector<float> equal(1000, 3.25F);
    CHECK(close_to(moe::token_nll(equal.data(), 1000, 7), std::log(1000.0), 1e-15));
    // Shares of 1, 2 and 5 eighths; also far from zero, where the exponential itself would overflow.
    for (const float shift : {0.0F, 512.0F, -512.0F}) {
        const float logits[] = {shift, shift + 0.6931472F, shift + 1.6094379F};
        CHECK(close_to(moe::token_nll(logits, 3, 0), std::log(8.0), 1e-4));
        CHECK(close_to(moe::token_nll(logits, 3, 1), std::log(4.0), 1e-4));
        CHECK(close_to(moe::token_nll(logits, 3, 2), std::log(1.6), 1e-4));
    }
    const float certain[] = {0.0F, -1000.0F};
    CHECK(moe::token_nll(certain, 2, 0) == 0.0);
    CHECK(moe::token_nll(certain, 2, 1) == 1000.0);
    const float broken[] = {0.0F, std::numeric_limits<float>::quiet_NaN(), 1.0F};
    CHECK(std::isnan(moe::token_nll(broken, 3, 0)));
}

void mean_and_error_of_known_values() {
    moe::NllStatistics sum;
    for (const double nll : {1.0, 2.0, 3.0, 4.0}) {
        sum.add(nll);
    }
    CHECK(sum.tokens() == 4);
    CHECK(close_to(sum.mean(), 2.5, 1e-15));
    CHECK(close_to(sum.perplexity(), 12.182493960703473, 1e-15));
    // Variance 5/4 over 4 values: the mean's error is the root of 5/4/3.
    CHECK(close_to(sum.perplexity_error(), 12.182493960703473 * 0.6454972243679028, 1e-14));

    moe::NllStatistics one;
    one.add(0.0);
    CHECK(one.perplexity() == 1.0 && std::isnan(one.perplexity_error()));  // one tells nothing of a spread

    // A spread far below the mean: the difference of two large sums would lose it.
    moe::NllStatistics flat;
    for (int i = 0; i < 100000; ++i) {
        flat.add(10.0 + (i % 2 == 0 ? 1e-7 : -1e-7));
    }
    CHECK(close_to(flat.perplexity_error(), std::exp(10.0) * 1e-7 / std::sqrt(99999.0), 1e-6));
}

void the_result_is_one_line() {
    moe::Perplexity result;
    result.chunks = 3;
    result.n_ctx = 40;
    result.nll.add(std::log(2.0));
    result.nll.add(std::log(8.0));
    CHECK(result.line() == "perplexity 4.0000 +- 2.77259, 2 tokens scored in 3 chunks of 40\n");
}

// The protocol once more, from its definition. In batches of the same size and with rows of logits for the same tokens:
// other shapes run other kernels.
std::vector<double> reference_nll(const std::string & path, const std::vector<llama_token> & tokens, bool add_bos,
                                  int batch_size) {
    llama_model_params model_params = llama_model_default_params();
    model_params.use_extra_bufts = false;
    const decoding::ModelPtr model(llama_model_load_from_file(path.c_str(), model_params));
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 256;
    params.n_batch = params.n_ubatch = static_cast<uint32_t>(batch_size);
    params.n_threads = params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    const decoding::ContextPtr context(llama_init_from_model(model.get(), params));
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model.get()));

    std::vector<double> nll;
    llama_batch batch = llama_batch_init(batch_size, 0, 1);
    for (size_t start = 0; start + chunk_tokens <= tokens.size(); start += chunk_tokens) {
        llama_memory_clear(llama_get_memory(context.get()), true);
        for (int pos = 0; pos < chunk_tokens; ++pos) {
            const int i = pos % batch_size;
            batch.token[i] = pos == 0 && add_bos ? bos : tokens[start + static_cast<size_t>(pos)];
            batch.pos[i] = pos;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = pos >= chunk_tokens / 2;
            batch.n_tokens = i + 1;
            if (i + 1 < batch_size && pos + 1 < chunk_tokens) {
                continue;
            }
            CHECK(llama_decode(context.get(), batch) == 0);
            for (int row = 0; row <= i; ++row) {
                const int at = pos - i + row;
                if (at < chunk_tokens / 2 || at + 1 == chunk_tokens) {
                    continue;
                }
                const float * logits = llama_get_logits_ith(context.get(), row);
                double sum = 0;
                for (int v = 0; v < n_vocab; ++v) {
                    sum += std::exp(static_cast<double>(logits[v]));
                }
                const auto next = static_cast<size_t>(tokens[start + static_cast<size_t>(at) + 1]);
                nll.push_back(-std::log(std::exp(static_cast<double>(logits[next])) / sum));
            }
        }
    }
    llama_batch_free(batch);
    return nll;
}

void every_second_half_is_scored() {
    for (const bool add_bos : {false, true}) {
        const std::string model = write_model(add_bos ? "bos" : "no-bos", add_bos);
        std::vector<llama_token> tokens;
        if (add_bos) {
            tokens.push_back(bos);
        }
        for (const char c : text) {
            tokens.push_back(static_cast<unsigned char>(c));
        }
        // Batches that end inside the first half, at its end, inside the second, with a single token, and too large ones.
        for (const char * batch : {"7", "13", "20", "39", "40", "4000"}) {
            const std::vector<double> expected =
                reference_nll(model, tokens, add_bos, std::min(std::stoi(batch), chunk_tokens));
            CHECK(expected.size() == 3 * 19);
            double sum = 0;
            for (const double nll : expected) {
                sum += nll;
            }
            const std::string telemetry = dir().file("scored.jsonl");
            const EngineResult result =
                EngineProcess({"-m", model, "--ppl-file", text_path(), "-c", "40", "-b", batch, "-t", "1", "--telemetry",
                               telemetry})
                    .run(dir().file("scored"));
            CHECK(result.code == 0);
            const std::string summary = lines_of(file_contents(telemetry)).back();
            const std::string found = summary.substr(summary.find("\"perplexity\":"));
            CHECK(json_value(found, "tokens") == "57" && json_value(found, "chunks") == "3");
            CHECK(close_to(std::stod(json_value(found, "nll")), sum / 57, 1e-12));
        }
    }
}

void a_run_tells_of_every_chunk() {
    const std::string telemetry = dir().file("told.jsonl");
    const EngineResult result = run({"-b", "16", "--telemetry", telemetry, "--logits-digest"});
    CHECK(result.code == 0);
    const std::vector<std::string> lines = lines_of(file_contents(telemetry));
    CHECK(lines.size() == 5);
    CHECK(json_value(lines.front(), "type") == "start");
    CHECK(json_value(lines.front(), "ppl_file") == text_path());
    CHECK(json_value(lines.front(), "n_predict") == "null" && json_value(lines.front(), "no_eog") == "null");
    for (size_t i = 0; i < 3; ++i) {
        const std::string & chunk = lines[i + 1];
        CHECK(json_value(chunk, "type") == "chunk");
        CHECK(json_value(chunk, "chunk") == std::to_string(i));
        CHECK(json_value(chunk, "tokens") == std::to_string(19 * (i + 1)));
        CHECK(close_to(std::stod(json_value(chunk, "perplexity")), std::exp(std::stod(json_value(chunk, "nll"))), 1e-12));
        CHECK(std::stod(json_value(chunk, "wall_ms")) > 0 && json_value(chunk, "requests") == "null");
    }
    const std::string & summary = lines.back();
    CHECK(json_value(summary, "type") == "summary");
    CHECK(json_value(summary, "tokens") == "0" && json_value(summary, "tok_s") == "null");
    CHECK(json_value(summary, "stopped_by") == "null" && json_value(summary, "ids_sha256") == "null");
    CHECK(std::stod(json_value(summary, "prefill_tok_s")) > 0);
    CHECK(json_value(summary, "logits_sha256").size() == 64);
    const std::string perplexity = summary.substr(summary.find("\"perplexity\":"));
    CHECK(json_value(perplexity, "value") == json_value(lines[3], "perplexity"));
    CHECK(json_value(perplexity, "nll") == json_value(lines[3], "nll"));
    CHECK(json_value(perplexity, "n_ctx") == "40");
    char line[160];
    std::snprintf(line, sizeof line, "perplexity %.4f +- %.5f, 57 tokens scored in 3 chunks of 40\n",
                  std::stod(json_value(perplexity, "value")), std::stod(json_value(perplexity, "stderr")));
    CHECK(result.out == line);
}

void a_bounded_run_scores_the_first_chunks() {
    const std::string telemetry = dir().file("bounded.jsonl");
    const auto scored = [&](const char * chunks) {
        CHECK(run({"--ppl-chunks", chunks, "--telemetry", telemetry}).code == 0);
        return lines_of(file_contents(telemetry));
    };
    const std::vector<std::string> all = scored("9");
    const std::vector<std::string> two = scored("2");
    CHECK(all.size() == 5 && two.size() == 4);
    CHECK(json_value(two.front(), "ppl_chunks") == "2");
    const std::string perplexity = two.back().substr(two.back().find("\"perplexity\":"));
    CHECK(json_value(perplexity, "chunks") == "2" && json_value(perplexity, "tokens") == "38");
    CHECK(json_value(perplexity, "nll") == json_value(all[2], "nll"));
}

void paging_changes_no_bit() {
    for (const char * batch : {"7", "40"}) {
        const std::string telemetry = dir().file("paged.jsonl");
        const auto outcome = [&](Args more) {
            more.insert(more.end(), {"-b", batch, "--telemetry", telemetry, "--logits-digest"});
            const EngineResult result = run(more);
            CHECK(result.code == 0);
            const std::vector<std::string> lines = lines_of(file_contents(telemetry));
            return lines.empty() ? result.err : result.out + json_value(lines.back(), "logits_sha256");
        };
        const std::string plain = outcome({});
        std::vector<Args> paged = {{"--moe-stream"},
                                   {"--moe-stream", "--overlap"},
                                   {"--moe-stream", "--cache-mb", "1", "--force-cache"},
                                   {"--moe-stream", "--cache-mb", "1", "--force-cache", "--overlap"},
                                   {"--moe-stream", "--cache-mb", "64", "--dense-weights", "anon"},
                                   {"--moe-stream", "--load-all"}};
        if (!*MOE_SANITIZE_NAME) {
            paged.push_back({"--ram-budget-mb", "64"});
        }
        for (const Args & flags : paged) {
            CHECK(outcome(flags) == plain);
            const std::string summary = lines_of(file_contents(telemetry)).back();
            const std::string total = summary.substr(summary.find("\"total\":"));
            const auto count = [&](const char * key) { return std::stoull(json_value(total, key)); };
            CHECK(count("requests") > 0 && count("requests") == count("hits") + count("misses"));
        }
        CHECK(outcome({"--expert-used", "1"}) != plain);
        CHECK(outcome({"--expert-used", "1", "--moe-stream"}) == outcome({"--expert-used", "1"}));
    }
}

void dropping_acts_as_in_a_prompt() {
    const std::string telemetry = dir().file("drop.jsonl");
    CHECK(run({"--moe-stream", "--cache-mb", "1", "--force-cache", "--drop-cold-experts", "1", "--drop-in-prefill",
               "--telemetry", telemetry})
              .code == 0);
    const std::string summary = lines_of(file_contents(telemetry)).back();
    const std::string total = summary.substr(summary.find("\"total\":"));
    CHECK(std::stoull(json_value(total, "dropped")) > 0);
}

// A chunk is a turn; the last layer has rows only where logits are wanted.
void a_trace_counts_chunks_as_turns() {
    const std::string trace = dir().file("routes.csv");
    CHECK(run({"--moe-stream", "-b", "16", "--route-trace", trace}).code == 0);
    std::map<std::string, int> rows;  // by turn and layer
    for (const std::string & line : lines_of(file_contents(trace))) {
        if (std::isdigit(static_cast<unsigned char>(line[0]))) {
            const std::vector<std::string> fields = [&] {
                std::istringstream stream(line);
                std::vector<std::string> parts;
                for (std::string part; std::getline(stream, part, ',');) {
                    parts.push_back(part);
                }
                return parts;
            }();
            ++rows[fields[0] + "/" + fields[3]];
            CHECK(fields[1] == "0" && std::stoi(fields[2]) < chunk_tokens);
            CHECK(fields[3] != "2" || std::stoi(fields[2]) >= chunk_tokens / 2);
        }
    }
    CHECK(rows.size() == 9);
    for (const auto & [where, count] : rows) {
        CHECK(count == 3 * (where.back() == '2' ? chunk_tokens / 2 : chunk_tokens));
    }
}

void what_cannot_be_scored_is_refused() {
    struct Refusal {
        Args args;
        int code;
        std::string words;
    };
    const std::string empty = dir().file("empty.txt");
    std::ofstream{empty};
    const std::string link = dir().file("link.txt");
    CHECK(symlink(text_path().c_str(), link.c_str()) == 0);
    const std::string size = std::to_string(text.size());
    const Args base = {"-m", model_path(), "-t", "1", "--ppl-file"};
    const std::vector<Refusal> table = {
        {{text_path(), "-c", "66"}, 2, "has " + size + " tokens, two chunks of --ctx-size 66 need 132"},
        {{text_path(), "-c", "66", "--moe-stream"}, 2, "has " + size + " tokens"},
        {{text_path(), "-c", "66", "--plan-memory"}, 2, "has " + size + " tokens"},
        {{empty, "-c", "8"}, 2, "has 0 tokens, two chunks of --ctx-size 8 need 16"},
        {{dir().file("none.txt")}, 5, "cannot read scored text"},
        {{link, "-c", "40", "--telemetry", text_path()}, 2, "the telemetry file is the scored text"},
    };
    for (const Refusal & row : table) {
        Args args = base;
        args.insert(args.end(), row.args.begin(), row.args.end());
        const EngineResult result = EngineProcess(args).run(dir().file("refused"));
        const bool ok = result.code == row.code && result.error_line().find(row.words) != std::string::npos;
        if (!ok) {
            std::fprintf(stderr, "  expected %d '%s', got %d: %s\n", row.code, row.words.c_str(), result.code,
                         result.err.c_str());
        }
        CHECK(ok);
        CHECK(result.out.empty());
    }
    CHECK(file_contents(text_path()) == text + "\n");  // not truncated
}

uint64_t planned(Args args, const char * key) {
    args.push_back("--plan-memory");
    const EngineResult result = EngineProcess(args).run(dir().file("plan"));
    CHECK(result.code == 0);
    return result.code == 0 ? std::stoull(json_value(result.out, key)) : 0;
}

void the_plan_counts_rows_of_logits_and_the_text() {
    const Args generating = {"-m", model_path(), "-p", "x", "-n", "1", "-c", "128", "-b", "64", "-t", "1"};
    const std::string long_text = dir().file("long.txt");
    std::ofstream{long_text} << std::string(mebibyte, 'x');
    const Args scoring_long = {"-m", model_path(), "--ppl-file", long_text, "-c", "128", "-b", "64", "-t", "1"};
    const uint64_t rows_bytes = 63 * 258 * sizeof(float);
    CHECK(planned(scoring_long, "compute_bytes") >= planned(generating, "compute_bytes") + rows_bytes);
    // Under a sanitizer freed memory does not come back into the heap where it is measured.
    if (*MOE_SANITIZE_NAME) {
        return;
    }
    CHECK(planned(scoring_long, "base_bytes") >= planned(generating, "base_bytes") + mebibyte * sizeof(llama_token));
    for (const Args & mode : {Args{}, Args{"--moe-stream", "--cache-mb", "1", "--force-cache"}}) {
        const Args args = scoring(mode);
        const uint64_t needed = planned(args, "needed_bytes") + mebibyte;  // pages that differ between processes
        CHECK(EngineProcess(args).limit_data(needed).run(dir().file("fits")).code == 0);
        const EngineResult refused = EngineProcess(args).limit_data(needed - 4 * mebibyte).run(dir().file("refused"));
        CHECK(refused.code == 4 && refused.error_line().rfind("needs ", 0) == 0);
    }
}

}  // namespace

int main() {
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    check::run("the likelihood of known logits", the_likelihood_of_known_logits);
    check::run("mean and error of known values", mean_and_error_of_known_values);
    check::run("the result is one line", the_result_is_one_line);
    check::run("every second half is scored", every_second_half_is_scored);
    check::run("a run tells of every chunk", a_run_tells_of_every_chunk);
    check::run("a bounded run scores the first chunks", a_bounded_run_scores_the_first_chunks);
    check::run("paging changes no bit", paging_changes_no_bit);
    check::run("dropping acts as in a prompt", dropping_acts_as_in_a_prompt);
    check::run("a trace counts chunks as turns", a_trace_counts_chunks_as_turns);
    check::run("what cannot be scored is refused", what_cannot_be_scored_is_refused);
    check::run("the plan counts rows of logits and the text", the_plan_counts_rows_of_logits_and_the_text);
    return check::result();
}
