// Owning handles for llama.cpp's objects, and the one place that decides their parameters, so that a memory
// plan, a plain run and a paged run are set up alike.
#pragma once

#include "node_watcher.h"
#include "options.h"

#include "ggml-cpu.h"
#include "llama.h"

#include <memory>
#include <string>
#include <vector>

namespace moe {

class Pager;

struct LlamaDeleter {
    void operator()(llama_model * model) const { llama_model_free(model); }
    void operator()(llama_context * context) const { llama_free(context); }
    void operator()(ggml_threadpool * pool) const { ggml_threadpool_free(pool); }
};
using ModelPtr = std::unique_ptr<llama_model, LlamaDeleter>;
using ContextPtr = std::unique_ptr<llama_context, LlamaDeleter>;
using ThreadpoolPtr = std::unique_ptr<ggml_threadpool, LlamaDeleter>;

// Sends llama.cpp's warnings and errors to stderr, drops the rest.
void install_llama_log();

// The last error that llama.cpp logged, as one line; empty if none.
std::string last_llama_error();

enum class LoadDepth { full, metadata_only };

// `arch` is the GGUF's architecture (the top-k override's key needs it). Throws Error(model).
ModelPtr load_model(const Options & options, const std::string & arch, Pager * pager, LoadDepth depth);

// Rows of logits that one decode can be asked for: the last token's, or those of the half of a chunk that is scored.
uint32_t max_outputs(const Options & options);

// `watcher`, if given, sees the nodes of every graph and must outlive the context.
ContextPtr make_context(llama_model * model, const Options & options, NodeWatcher * watcher = nullptr);

// The prompt, or the text to score, as tokens.
std::vector<llama_token> tokenize_input(const llama_vocab * vocab, const Options & options, const std::string & text);

ThreadpoolPtr make_threadpool(int n_threads);

}  // namespace moe
