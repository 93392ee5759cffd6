// Builds tiny MoE models with random weights, complete enough for llama.cpp to load and decode.
#pragma once

#include "ggml.h"
#include "gguf.h"
#include "llama.h"

#include <climits>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace tiny {

// What differs in how experts are stored: three matrices, a fused pair and one, three with biases.
enum class Arch { qwen3moe, hy_v3, gpt_oss };

struct Model {
    Arch arch = Arch::qwen3moe;
    uint32_t n_layer = 2;
    uint32_t n_layer_nextn = 0;  // how many of them are for speculative decoding
    uint32_t n_expert = 8;
    uint32_t n_expert_used = 2;
    int64_t n_embd = 256;
    int64_t n_ff_exp = 256;
    ggml_type expert_type = GGML_TYPE_F16;
    uint32_t n_large_layer = 0;  // the last layers, whose experts are of this type instead
    ggml_type large_type = GGML_TYPE_F16;
    ggml_type dense_type = GGML_TYPE_F16;
    bool tied_output = false;
    bool add_bos = false;  // token 256 begins every text
    uint32_t n_shards = 1;
    uint32_t seed = 1;

    uint32_t n_parts() const { return arch == Arch::hy_v3 ? 2 : 3; }
    const char * arch_name() const {
        return arch == Arch::qwen3moe ? "qwen3moe" : arch == Arch::hy_v3 ? "hy_v3" : "gpt-oss";
    }
};

namespace detail {

constexpr int64_t kVocab = 256 + 2;  // the bytes, end of text, padding
constexpr int64_t kHead = 64;
constexpr int64_t kHeads = 2;
constexpr int64_t kHeadsKv = 1;

struct ContextDeleter {
    void operator()(ggml_context * ctx) const { ggml_free(ctx); }
    void operator()(gguf_context * ctx) const { gguf_free(ctx); }
};
using ContextPtr = std::unique_ptr<ggml_context, ContextDeleter>;
using GgufPtr = std::unique_ptr<gguf_context, ContextDeleter>;

// GPT-2's byte alphabet: printable bytes stand for themselves, the others for code points from 256 on.
inline std::vector<std::string> byte_tokens() {
    std::vector<std::string> tokens;
    unsigned next = 256;
    for (unsigned byte = 0; byte < 256; ++byte) {
        const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        const unsigned point = printable ? byte : next++;
        std::string utf8;
        if (point < 0x80) {
            utf8 += static_cast<char>(point);
        } else {
            utf8 += static_cast<char>(0xC0 | (point >> 6));
            utf8 += static_cast<char>(0x80 | (point & 0x3F));
        }
        tokens.push_back(utf8);
    }
    return tokens;
}

inline void set_metadata(gguf_context * gguf, const Model & m) {
    const std::string prefix = std::string(m.arch_name()) + ".";
    const auto u32 = [&](const char * key, int64_t value) {
        gguf_set_val_u32(gguf, (prefix + key).c_str(), static_cast<uint32_t>(value));
    };
    gguf_set_val_str(gguf, "general.architecture", m.arch_name());
    gguf_set_val_str(gguf, "general.name", "tiny");
    u32("context_length", 512);
    u32("embedding_length", m.n_embd);
    u32("block_count", m.n_layer);
    if (m.n_layer_nextn > 0) {
        u32("nextn_predict_layers", m.n_layer_nextn);
    }
    u32("feed_forward_length", m.n_ff_exp);
    u32("expert_feed_forward_length", m.n_ff_exp);
    u32("expert_count", m.n_expert);
    u32("expert_used_count", m.n_expert_used);
    u32("attention.head_count", kHeads);
    u32("attention.head_count_kv", kHeadsKv);
    u32("attention.key_length", kHead);
    u32("attention.value_length", kHead);
    gguf_set_val_f32(gguf, (prefix + "attention.layer_norm_rms_epsilon").c_str(), 1e-6F);
    gguf_set_val_f32(gguf, (prefix + "rope.freq_base").c_str(), 10000.0F);
    if (m.arch == Arch::gpt_oss) {
        u32("attention.sliding_window", 128);
    }

    std::vector<std::string> tokens = byte_tokens();
    tokens.emplace_back("<|end|>");
    tokens.emplace_back("<|pad|>");
    std::vector<const char *> token_ptrs;
    for (const std::string & t : tokens) {
        token_ptrs.push_back(t.c_str());
    }
    std::vector<int32_t> types(tokens.size(), 1);
    types[256] = types[257] = 3;  // control
    const char * merge = "e r";
    gguf_set_val_str(gguf, "tokenizer.ggml.model", "gpt2");
    gguf_set_val_str(gguf, "tokenizer.ggml.pre", "gpt-2");
    gguf_set_arr_str(gguf, "tokenizer.ggml.tokens", token_ptrs.data(), token_ptrs.size());
    gguf_set_arr_data(gguf, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
    gguf_set_arr_str(gguf, "tokenizer.ggml.merges", &merge, 1);
    gguf_set_val_u32(gguf, "tokenizer.ggml.eos_token_id", 256);
    gguf_set_val_u32(gguf, "tokenizer.ggml.padding_token_id", 257);
    gguf_set_val_u32(gguf, "tokenizer.ggml.bos_token_id", 256);
    gguf_set_val_bool(gguf, "tokenizer.ggml.add_bos_token", m.add_bos);
}

class Tensors {
public:
    Tensors(size_t bytes, uint32_t seed) : random_(seed) {
        ggml_init_params params{};
        params.mem_size = bytes;
        ctx_.reset(ggml_init(params));
        if (!ctx_) {
            throw std::runtime_error("no memory for a tiny model");
        }
    }

    void add(const std::string & name, ggml_type type, std::vector<int64_t> ne, float mean = 0.0F) {
        ggml_tensor * t = ggml_new_tensor(ctx_.get(), type, static_cast<int>(ne.size()), ne.data());
        ggml_set_name(t, name.c_str());
        // Wide enough that the top-k differ from token to token, narrow enough that nothing overflows.
        const float spread = mean != 0.0F ? 0.2F : 0.16F;
        std::vector<float> values(static_cast<size_t>(ggml_nelements(t)));
        for (float & v : values) {
            v = mean + spread * (next_uniform() + next_uniform());
        }
        if (type == GGML_TYPE_F32) {
            std::memcpy(t->data, values.data(), values.size() * sizeof(float));
        } else {
            ggml_quantize_chunk(type, values.data(), t->data, 0, ggml_nrows(t), t->ne[0], nullptr);
        }
        all_.push_back(t);
    }

    const std::vector<ggml_tensor *> & all() const { return all_; }

private:
    // -0.5 to 0.5. Millions are drawn; the standard library's distributions would take most of a test's time.
    float next_uniform() {
        random_ = random_ * 6364136223846793005ULL + 1442695040888963407ULL;
        return static_cast<float>(random_ >> 40) * 0x1p-24F - 0.5F;
    }

    ContextPtr ctx_;
    uint64_t random_;
    std::vector<ggml_tensor *> all_;
};

inline void add_tensors(Tensors & tensors, const Model & m) {
    const auto blk = [](uint32_t il, const char * name, const char * suffix = ".weight") {
        return "blk." + std::to_string(il) + "." + name + suffix;
    };
    const bool biased = m.arch == Arch::gpt_oss;
    tensors.add("token_embd.weight", m.dense_type, {m.n_embd, kVocab});
    tensors.add("output_norm.weight", GGML_TYPE_F32, {m.n_embd}, 1.0F);
    if (!m.tied_output) {
        tensors.add("output.weight", m.dense_type, {m.n_embd, kVocab});
    }
    for (uint32_t il = 0; il < m.n_layer; ++il) {
        tensors.add(blk(il, "attn_norm"), GGML_TYPE_F32, {m.n_embd}, 1.0F);
        tensors.add(blk(il, "attn_q"), m.dense_type, {m.n_embd, kHead * kHeads});
        tensors.add(blk(il, "attn_k"), m.dense_type, {m.n_embd, kHead * kHeadsKv});
        tensors.add(blk(il, "attn_v"), m.dense_type, {m.n_embd, kHead * kHeadsKv});
        tensors.add(blk(il, "attn_output"), m.dense_type, {kHead * kHeads, m.n_embd});
        tensors.add(blk(il, "ffn_gate_inp"), GGML_TYPE_F32, {m.n_embd, m.n_expert});
        if (biased) {
            tensors.add(blk(il, "post_attention_norm"), GGML_TYPE_F32, {m.n_embd}, 1.0F);
            tensors.add(blk(il, "attn_sinks"), GGML_TYPE_F32, {kHeads});
            tensors.add(blk(il, "attn_output", ".bias"), GGML_TYPE_F32, {m.n_embd});
            tensors.add(blk(il, "ffn_gate_inp", ".bias"), GGML_TYPE_F32, {m.n_expert});
            tensors.add(blk(il, "ffn_gate_exps", ".bias"), GGML_TYPE_F32, {m.n_ff_exp, m.n_expert});
            tensors.add(blk(il, "ffn_up_exps", ".bias"), GGML_TYPE_F32, {m.n_ff_exp, m.n_expert});
            tensors.add(blk(il, "ffn_down_exps", ".bias"), GGML_TYPE_F32, {m.n_embd, m.n_expert});
        } else {
            tensors.add(blk(il, "attn_q_norm"), GGML_TYPE_F32, {kHead}, 1.0F);
            tensors.add(blk(il, "attn_k_norm"), GGML_TYPE_F32, {kHead}, 1.0F);
            tensors.add(blk(il, "ffn_norm"), GGML_TYPE_F32, {m.n_embd}, 1.0F);
        }
    }
    for (uint32_t il = 0; il < m.n_layer; ++il) {
        const ggml_type type = il + m.n_large_layer >= m.n_layer ? m.large_type : m.expert_type;
        if (m.arch == Arch::hy_v3) {
            tensors.add(blk(il, "ffn_gate_up_exps"), type, {m.n_embd, 2 * m.n_ff_exp, m.n_expert});
        } else {
            tensors.add(blk(il, "ffn_gate_exps"), type, {m.n_embd, m.n_ff_exp, m.n_expert});
            tensors.add(blk(il, "ffn_up_exps"), type, {m.n_embd, m.n_ff_exp, m.n_expert});
        }
        tensors.add(blk(il, "ffn_down_exps"), type, {m.n_ff_exp, m.n_embd, m.n_expert});
    }
}

}  // namespace detail

// All files of a model written under `stem`, a path without extension.
inline std::vector<std::string> files(const Model & model, const std::string & stem) {
    if (model.n_shards == 1) {
        return {stem + ".gguf"};
    }
    std::vector<std::string> paths;
    for (uint32_t i = 0; i < model.n_shards; ++i) {
        char path[PATH_MAX];
        llama_split_path(path, sizeof(path), stem.c_str(), static_cast<int>(i), static_cast<int>(model.n_shards));
        paths.emplace_back(path);
    }
    return paths;
}

// Writes the model and returns the path of its first (or only) file. Expert tensors come last in the file, so that
// cutting its end off loses experts and nothing else.
inline std::string write(const Model & m, const std::string & stem) {
    using namespace detail;
    const int64_t expert_floats = int64_t{3} * m.n_layer * m.n_expert * m.n_embd * m.n_ff_exp;
    Tensors tensors(static_cast<size_t>(expert_floats) * sizeof(float) / 2 + (size_t{32} << 20), m.seed);
    add_tensors(tensors, m);

    const std::vector<std::string> paths = files(m, stem);
    const size_t n = tensors.all().size();
    for (uint32_t shard = 0; shard < m.n_shards; ++shard) {
        const GgufPtr gguf(gguf_init_empty());
        if (shard == 0) {
            set_metadata(gguf.get(), m);
        }
        if (m.n_shards > 1) {
            gguf_set_val_u16(gguf.get(), "split.no", static_cast<uint16_t>(shard));
            gguf_set_val_u16(gguf.get(), "split.count", static_cast<uint16_t>(m.n_shards));
            gguf_set_val_i32(gguf.get(), "split.tensors.count", static_cast<int32_t>(n));
        }
        for (size_t i = n * shard / m.n_shards; i < n * (shard + 1) / m.n_shards; ++i) {
            gguf_add_tensor(gguf.get(), tensors.all()[i]);
        }
        if (!gguf_write_to_file(gguf.get(), paths[shard].c_str(), false)) {
            throw std::runtime_error("cannot write " + paths[shard]);
        }
    }
    return paths.front();
}

}  // namespace tiny
