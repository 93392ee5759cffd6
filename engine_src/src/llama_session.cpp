#include "llama_session.h"

#include "decode.h"
#include "error.h"
#include "pager.h"

#include "llama-ext.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <mutex>

namespace moe {

namespace {

struct LogState {
    std::mutex mutex;
    ggml_log_level level = GGML_LOG_LEVEL_INFO;
    std::string last_error;
};

LogState & log_state() {
    static LogState state;
    return state;
}

// Called by llama.cpp and ggml from any thread; must not throw.
void on_log(ggml_log_level level, const char * text, void *) {
    LogState & state = log_state();
    const std::lock_guard<std::mutex> lock(state.mutex);
    if (level != GGML_LOG_LEVEL_CONT) {
        state.level = level;
    }
    if (state.level != GGML_LOG_LEVEL_WARN && state.level != GGML_LOG_LEVEL_ERROR) {
        return;
    }
    std::fputs(text, stderr);
    if (level == GGML_LOG_LEVEL_ERROR) {
        state.last_error = text;
    } else if (level == GGML_LOG_LEVEL_CONT && state.level == GGML_LOG_LEVEL_ERROR) {
        state.last_error += text;
    }
}

// What llama.cpp's scheduler calls before (`ask`) and after a node is computed; false afterwards would end the graph.
bool on_node(ggml_tensor * node, bool ask, void * watcher) {
    auto & target = *static_cast<NodeWatcher *>(watcher);
    if (ask) {
        return target.wants(*node);
    }
    target.computed(*node);
    return true;
}

}  // namespace

void install_llama_log() { llama_log_set(on_log, nullptr); }

std::string last_llama_error() {
    LogState & state = log_state();
    const std::lock_guard<std::mutex> lock(state.mutex);
    std::string line = state.last_error;
    while (!line.empty() && line.back() == '\n') {
        line.pop_back();
    }
    std::replace(line.begin(), line.end(), '\n', ' ');
    return line;
}

ModelPtr load_model(const Options & options, const std::string & arch, Pager * pager, LoadDepth depth) {
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    params.load_mode = LLAMA_LOAD_MODE_MMAP;
    // Repacked weights would run other kernels than paged ones do, and mapped weights could not be used in place.
    params.use_extra_bufts = options.repack;

    std::array<llama_model_kv_override, 2> overrides{};
    if (options.expert_used) {
        const std::string key = arch + ".expert_used_count";
        if (key.size() >= sizeof overrides[0].key) {
            throw Error(ExitCode::model, "--expert-used: the model's architecture name is too long to override");
        }
        overrides[0].tag = LLAMA_KV_OVERRIDE_TYPE_INT;
        std::memcpy(overrides[0].key, key.c_str(), key.size() + 1);
        overrides[0].val_i64 = *options.expert_used;
        params.kv_overrides = overrides.data();  // ends with the entry whose key is empty
    }
    if (pager) {
        pager->configure(params);
    }
    if (depth == LoadDepth::metadata_only) {
        params.no_alloc = true;
        params.load_mode = LLAMA_LOAD_MODE_NONE;  // llama.cpp maps nothing when it allocates nothing
    }

    ModelPtr model(llama_model_load_from_file(options.model.c_str(), params));
    if (!model) {
        const std::string reason = last_llama_error();
        throw Error(ExitCode::model, "cannot load model '" + options.model + "'" + (reason.empty() ? "" : ": " + reason));
    }
    return model;
}

uint32_t max_outputs(const Options & options) {
    return options.ppl_file ? std::min(options.n_batch, options.n_ctx - options.n_ctx / 2) : 1;
}

ContextPtr make_context(llama_model * model, const Options & options, NodeWatcher * watcher) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = options.n_ctx;
    params.n_batch = std::min(options.n_batch, options.n_ctx);
    params.n_ubatch = params.n_batch;
    params.n_seq_max = 1;
    params.n_outputs_max = max_outputs(options);  // by default a row per token of a batch: batch x vocabulary floats
    params.n_threads = options.threads;
    params.n_threads_batch = options.threads;
    // Fixed, never AUTO: AUTO looks at which device computes the layers, and so would choose differently with and
    // without paging, and with it other kernels and other logits. ENABLED is what AUTO comes to on a plain CPU. From
    // 512 KV cells on its kernel splits a token's work by threads, so logits are comparable at equal -t (and -b) only.
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.no_perf = true;
    if (watcher) {
        params.cb_eval = on_node;
        params.cb_eval_user_data = watcher;
    }

    ContextPtr context(llama_init_from_model(model, params));
    if (!context) {
        const std::string reason = last_llama_error();
        throw Error(ExitCode::other, "cannot create a context" + (reason.empty() ? "" : ": " + reason));
    }
    // Some architectures (gpt-oss, gemma4, qwen35moe, qwen3next) compute their last layer for every token of a prompt, in
    // case a draft model wants its output, unless told that nobody does. Its experts need not be read for them then.
    llama_set_embeddings_nextn(context.get(), false, true);
    return context;
}

std::vector<llama_token> tokenize_input(const llama_vocab * vocab, const Options & options, const std::string & text) {
    return tokenize(vocab, text, options.ppl_file ? TextPlace::document : TextPlace::beginning);
}

ThreadpoolPtr make_threadpool(int n_threads) {
    ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
    ThreadpoolPtr pool(ggml_threadpool_new(&params));
    if (!pool) {
        throw Error(ExitCode::other, "cannot start " + std::to_string(n_threads) + " compute threads");
    }
    return pool;
}

}  // namespace moe
