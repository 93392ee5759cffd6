// Teacher-forced perplexity of a text, by the protocol of llama.cpp's own tool: the tokens are cut into chunks of the
// context's length, each is evaluated as a sequence of its own that starts with the begin-of-text token where the model
// wants one, and the tokens of its second half are scored. What is left at the end is not used.
#pragma once

#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace moe {

class AnonPeak;
class Decoder;
class Outputs;
struct CallCost;
struct Options;

// Mean and spread of the scored tokens' negative log-likelihoods, in nats.
class NllStatistics {
public:
    void add(double nll);

    uint64_t tokens() const { return tokens_; }
    double mean() const { return mean_; }
    double perplexity() const;

    // Standard error of the perplexity: that of the mean, carried through the exponential. NaN below two tokens.
    double perplexity_error() const;

private:
    uint64_t tokens_ = 0;
    double mean_ = 0;
    double squares_ = 0;  // sum of squared distances from the mean
};

struct Perplexity {
    NllStatistics nll;
    uint64_t chunks = 0;
    uint32_t n_ctx = 0;

    std::string line() const;  // for people
    std::string json() const;
};

// The text of --ppl-file, as the tool reads it: without one newline at its end. Throws Error.
std::string read_scored_text(const Options & options);

// Whether `n_tokens` make the two chunks that are the least. Throws Error(usage).
void check_scored_length(const Options & options, uint64_t n_tokens);

// Scores all chunks, telling of each as telemetry. `cost` is the sum of all calls. Throws Error.
Perplexity measure_perplexity(const Options & options, const llama_vocab * vocab, const std::vector<llama_token> & tokens,
                              Decoder & decoder, Outputs & outputs, AnonPeak & peak, CallCost & cost);

}  // namespace moe
