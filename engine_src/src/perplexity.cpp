#include "perplexity.h"

#include "anon_peak.h"
#include "decode.h"
#include "error.h"
#include "json.h"
#include "options.h"
#include "outputs.h"
#include "process.h"
#include "report.h"
#include "telemetry.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace moe {

namespace {

// Scores one chunk into `sum`. `tokens` are the chunk's; the first stands for itself only where no begin-of-text token
// takes its place.
CallCost score_chunk(const Options & options, const llama_vocab * vocab, const llama_token * tokens, Decoder & decoder,
                     NllStatistics & sum) {
    const auto n_ctx = static_cast<int32_t>(options.n_ctx);
    const int32_t first = n_ctx / 2;
    const auto n_batch = static_cast<int32_t>(std::min(options.n_batch, options.n_ctx));
    std::vector<llama_token> input(tokens, tokens + n_ctx);
    if (llama_vocab_get_add_bos(vocab)) {
        input[0] = llama_vocab_bos(vocab);
    }
    CallCost cost;
    decoder.restart();
    for (int32_t at = 0; at < n_ctx; at += n_batch) {
        const int32_t count = std::min(n_batch, n_ctx - at);
        const int32_t first_wanted = std::clamp(first - at, 0, count);
        cost += decoder.read(input.data() + at, count, first_wanted);
        // The token after the last belongs to the next chunk.
        for (int32_t i = first_wanted; i < count && at + i + 1 < n_ctx; ++i) {
            const double nll = decoder.nll_after(i, tokens[at + i + 1]);
            if (!std::isfinite(nll)) {
                throw Error(ExitCode::other, "the model gives token " + std::to_string(at + i + 1) +
                                                 " of a chunk no finite likelihood: a logit is not a number or infinite");
            }
            sum.add(nll);
        }
    }
    return cost;
}

}  // namespace

void NllStatistics::add(double nll) {
    ++tokens_;
    const double before = nll - mean_;
    mean_ += before / static_cast<double>(tokens_);
    squares_ += before * (nll - mean_);
}

double NllStatistics::perplexity() const { return std::exp(mean_); }

double NllStatistics::perplexity_error() const {
    if (tokens_ < 2) {
        return std::numeric_limits<double>::quiet_NaN();
    }
    const auto n = static_cast<double>(tokens_);
    return perplexity() * std::sqrt(squares_ / n / (n - 1));
}

std::string Perplexity::line() const {
    char text[160];
    std::snprintf(text, sizeof text, "perplexity %.4f +- %.5f, %llu tokens scored in %llu chunks of %u\n",
                  nll.perplexity(), nll.perplexity_error(), static_cast<unsigned long long>(nll.tokens()),
                  static_cast<unsigned long long>(chunks), n_ctx);
    return text;
}

std::string Perplexity::json() const {
    return JsonObject()
        .number("value", nll.perplexity())
        .number("nll", nll.mean())
        .number("tokens", nll.tokens())
        .number("chunks", chunks)
        .number("n_ctx", n_ctx)
        .number("stderr", nll.perplexity_error())
        .str();
}

std::string read_scored_text(const Options & options) {
    std::string text = read_file(*options.ppl_file, "scored text");
    if (text.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
        throw Error(ExitCode::usage, "--ppl-file: '" + *options.ppl_file + "' has " + std::to_string(text.size()) +
                                         " bytes, llama.cpp tokenises at most 2147483647");
    }
    if (!text.empty() && text.back() == '\n') {
        text.pop_back();
    }
    return text;
}

void check_scored_length(const Options & options, uint64_t n_tokens) {
    const uint64_t least = uint64_t{2} * options.n_ctx;
    if (n_tokens < least) {
        throw Error(ExitCode::usage, "--ppl-file: '" + *options.ppl_file + "' has " + std::to_string(n_tokens) +
                                         " tokens, two chunks of --ctx-size " + std::to_string(options.n_ctx) + " need " +
                                         std::to_string(least));
    }
}

Perplexity measure_perplexity(const Options & options, const llama_vocab * vocab, const std::vector<llama_token> & tokens,
                              Decoder & decoder, Outputs & outputs, AnonPeak & peak, CallCost & cost) {
    if (llama_vocab_get_add_eos(vocab)) {
        throw Error(ExitCode::model, "--ppl-file: this model's tokenizer ends every text with a token of its own, which is "
                                     "in no chunk's place");
    }
    Perplexity result;
    result.n_ctx = options.n_ctx;
    uint64_t n_chunks = tokens.size() / options.n_ctx;
    if (options.ppl_chunks) {
        n_chunks = std::min(n_chunks, static_cast<uint64_t>(*options.ppl_chunks));
    }
    for (; result.chunks < n_chunks; ++result.chunks) {
        const llama_token * chunk = tokens.data() + result.chunks * options.n_ctx;
        const CallCost call = score_chunk(options, vocab, chunk, decoder, result.nll);
        cost += call;
        outputs.event(chunk_line(result.chunks, result.nll, call));
        peak.look();
    }
    return result;
}

}  // namespace moe
