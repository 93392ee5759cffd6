#include "catalog.h"

#include "error.h"

#include "gguf.h"
#include "llama.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <optional>
#include <set>

namespace moe {

const char * const kExpertTensorPattern = "\\.ffn_(gate|up|down|gate_up)_(ch)?exps\\.weight$";

namespace {

struct GgufDeleter {
    void operator()(gguf_context * ctx) const { gguf_free(ctx); }
};
using GgufPtr = std::unique_ptr<gguf_context, GgufDeleter>;

[[noreturn]] void refuse(const std::string & path, const std::string & why) {
    throw Error(ExitCode::model, path + ": " + why);
}

uint64_t file_size(const std::string & path) {
    struct stat st {};
    if (stat(path.c_str(), &st) != 0) {
        refuse(path, std::strerror(errno));
    }
    if (!S_ISREG(st.st_mode)) {
        refuse(path, "not a regular file");
    }
    return static_cast<uint64_t>(st.st_size);
}

GgufPtr open_gguf(const std::string & path) {
    file_size(path);
    gguf_init_params params{};
    params.no_alloc = true;
    GgufPtr gguf(gguf_init_from_file(path.c_str(), params));
    if (!gguf) {
        refuse(path, "not a readable GGUF file");
    }
    return gguf;
}

// An unsigned integer of any width; an array yields its largest element (per-layer settings).
std::optional<uint64_t> get_uint(const gguf_context * gguf, const std::string & key) {
    const int64_t id = gguf_find_key(gguf, key.c_str());
    if (id < 0) {
        return std::nullopt;
    }
    switch (gguf_get_kv_type(gguf, id)) {
        case GGUF_TYPE_UINT8:  return gguf_get_val_u8(gguf, id);
        case GGUF_TYPE_UINT16: return gguf_get_val_u16(gguf, id);
        case GGUF_TYPE_UINT32: return gguf_get_val_u32(gguf, id);
        case GGUF_TYPE_UINT64: return gguf_get_val_u64(gguf, id);
        case GGUF_TYPE_INT32:  return static_cast<uint64_t>(std::max(0, gguf_get_val_i32(gguf, id)));
        case GGUF_TYPE_ARRAY: {
            const auto type = gguf_get_arr_type(gguf, id);
            if (type != GGUF_TYPE_UINT32 && type != GGUF_TYPE_INT32) {
                return std::nullopt;
            }
            const auto * values = static_cast<const int32_t *>(gguf_get_arr_data(gguf, id));
            const size_t n = gguf_get_arr_n(gguf, id);
            int32_t largest = 0;
            for (size_t i = 0; i < n; ++i) {
                largest = std::max(largest, values[i]);
            }
            return static_cast<uint64_t>(largest);
        }
        default: return std::nullopt;
    }
}

struct ExpertName {
    uint32_t layer = 0;
    bool second_set = false;  // chexps
    uint32_t rank = 0;        // order in which a layer's graph uses its parts
};

struct LayerTensor {
    uint32_t layer = 0;
    std::string rest;  // the name without "blk.N."
};

constexpr unsigned kMaxLayers = 1 << 16;  // beyond any model: such a number is a damaged name

std::optional<LayerTensor> parse_layer(const std::string & name) {
    unsigned layer = 0;
    int consumed = 0;
    if (std::sscanf(name.c_str(), "blk.%u.%n", &layer, &consumed) != 1 || consumed == 0 || layer >= kMaxLayers) {
        return std::nullopt;
    }
    return LayerTensor{layer, name.substr(static_cast<size_t>(consumed))};
}

// The same language as kExpertTensorPattern, plus the layer number in front.
std::optional<ExpertName> parse_expert_name(const std::string & name) {
    static constexpr std::array<const char *, 4> kinds = {"gate", "up", "gate_up", "down"};
    const auto tensor = parse_layer(name);
    if (!tensor) {
        return std::nullopt;
    }
    const auto & [layer, rest] = *tensor;
    for (uint32_t rank = 0; rank < kinds.size(); ++rank) {
        const std::string stem = std::string("ffn_") + kinds[rank] + "_";
        if (rest == stem + "exps.weight") {
            return ExpertName{layer, false, rank};
        }
        if (rest == stem + "chexps.weight") {
            return ExpertName{layer, true, rank};
        }
    }
    return std::nullopt;
}

std::vector<std::string> shard_paths(const std::string & path, const gguf_context * first) {
    const uint64_t count = get_uint(first, "split.count").value_or(1);
    if (count <= 1) {
        return {path};
    }
    if (count > 9999) {
        refuse(path, "names an absurd number of shards: " + std::to_string(count));
    }
    if (get_uint(first, "split.no").value_or(0) != 0) {
        refuse(path, "is not the first shard of a split model: give the file that ends in 00001-of-...");
    }
    const int n_split = static_cast<int>(count);
    std::array<char, PATH_MAX> prefix{};
    if (llama_split_prefix(prefix.data(), prefix.size(), path.c_str(), 0, n_split) <= 0) {
        refuse(path, "is a shard whose name does not end in -00001-of-" + std::to_string(count) + ".gguf");
    }
    std::vector<std::string> paths;
    for (int i = 0; i < n_split; ++i) {
        std::array<char, PATH_MAX> shard{};
        llama_split_path(shard.data(), shard.size(), prefix.data(), i, n_split);
        paths.emplace_back(shard.data());
    }
    return paths;
}

bool is_embedding_table(const std::string & name) {
    return name == "token_embd.weight" || name == "per_layer_token_embd.weight";
}

}  // namespace

bool is_expert_tensor(const std::string & name) { return parse_expert_name(name).has_value(); }

uint64_t MoeBlock::expert_bytes() const {
    uint64_t bytes = 0;
    for (const ExpertPart & part : parts) {
        bytes += part.slice_bytes;
    }
    return bytes;
}

Catalog Catalog::read(const std::string & path) {
    Catalog catalog;
    {
        const GgufPtr first = open_gguf(path);
        catalog.shards_ = shard_paths(path, first.get());
        const int64_t arch_id = gguf_find_key(first.get(), "general.architecture");
        if (arch_id < 0 || gguf_get_kv_type(first.get(), arch_id) != GGUF_TYPE_STRING) {
            refuse(path, "names no architecture (general.architecture)");
        }
        const std::string arch = gguf_get_val_str(first.get(), arch_id);
        catalog.n_expert_used_ =
            static_cast<uint32_t>(get_uint(first.get(), arch + ".expert_used_count").value_or(0));
        const uint64_t n_layer = get_uint(first.get(), arch + ".block_count").value_or(UINT32_MAX);
        catalog.n_layer_ = n_layer - std::min(n_layer, get_uint(first.get(), arch + ".nextn_predict_layers").value_or(0));
    }
    for (uint32_t shard = 0; shard < catalog.shards_.size(); ++shard) {
        catalog.add_shard(catalog.shards_[shard], shard);
    }
    if (catalog.blocks_.empty()) {
        refuse(path, "holds no fused routed experts (blk.N.ffn_*_exps.weight): not a MoE model that can be streamed");
    }
    if (catalog.n_expert_used_ == 0) {
        refuse(path, "does not say how many experts a token uses (expert_used_count)");
    }
    catalog.finish();
    return catalog;
}

void Catalog::add_shard(const std::string & path, uint32_t shard) {
    const uint64_t size = file_size(path);
    const GgufPtr gguf = open_gguf(path);
    const uint64_t data_offset = gguf_get_data_offset(gguf.get());
    const int64_t n_tensors = gguf_get_n_tensors(gguf.get());

    for (int64_t id = 0; id < n_tensors; ++id) {
        const std::string name = gguf_get_tensor_name(gguf.get(), id);
        const uint64_t offset = data_offset + gguf_get_tensor_offset(gguf.get(), id);
        const uint64_t bytes = gguf_get_tensor_size(gguf.get(), id);
        if (offset > size || bytes > size - offset) {
            refuse(path, "truncated: tensor " + name + " ends at byte " + std::to_string(offset + bytes) +
                             ", the file at " + std::to_string(size));
        }

        const auto expert = parse_expert_name(name);
        if (!expert) {
            dense_.push_back({name, shard, offset, bytes, is_embedding_table(name)});
            continue;
        }
        if (expert->layer >= n_layer_) {
            continue;
        }
        const int64_t * ne = gguf_get_tensor_ne(gguf.get(), id);
        const int64_t n_expert = ne[2];
        if (n_expert < 1 || n_expert > INT32_MAX || bytes % static_cast<uint64_t>(n_expert) != 0) {
            refuse(path, "tensor " + name + " has no usable shape for experts");
        }
        // Blocks are found by layer and set; a linear search over a few hundred is nothing beside the file access.
        const uint32_t set_key = expert->layer * 2 + (expert->second_set ? 1 : 0);
        auto it = std::find_if(blocks_.begin(), blocks_.end(),
                               [&](const MoeBlock & b) { return b.first_key == set_key; });
        if (it == blocks_.end()) {
            MoeBlock block;
            block.layer = expert->layer;
            block.n_expert = static_cast<uint32_t>(n_expert);
            block.first_key = set_key;  // until finish() numbers the experts
            blocks_.push_back(block);
            it = blocks_.end() - 1;
        }
        if (it->n_expert != static_cast<uint32_t>(n_expert)) {
            refuse(path, "tensor " + name + " has " + std::to_string(n_expert) + " experts, another of its layer " +
                             std::to_string(it->n_expert));
        }
        it->parts.push_back({name, shard, offset, bytes / static_cast<uint64_t>(n_expert), static_cast<uint32_t>(ne[0]),
                             static_cast<uint32_t>(ne[1])});
    }
}

void Catalog::finish() {
    std::sort(blocks_.begin(), blocks_.end(),
              [](const MoeBlock & a, const MoeBlock & b) { return a.first_key < b.first_key; });
    uint32_t key = 0;
    for (uint32_t b = 0; b < blocks_.size(); ++b) {
        MoeBlock & block = blocks_[b];
        block.first_key = key;
        key += block.n_expert;
        std::sort(block.parts.begin(), block.parts.end(), [](const ExpertPart & a, const ExpertPart & c) {
            return parse_expert_name(a.tensor)->rank < parse_expert_name(c.tensor)->rank;
        });
        for (uint32_t p = 0; p < block.parts.size(); ++p) {
            part_index_[block.parts[p].tensor] = {b, p};
        }
    }

    // Without an output matrix of its own the model multiplies by the embedding table: then every token reads all of it.
    const bool tied = std::none_of(dense_.begin(), dense_.end(),
                                   [](const DenseTensor & t) { return t.name == "output.weight"; });
    for (size_t i = 0; i < dense_.size(); ++i) {
        if (tied && dense_[i].name == "token_embd.weight") {
            dense_[i].sparse_rows = false;
        }
        dense_index_[dense_[i].name] = i;
    }
}

uint32_t Catalog::n_expert() const {
    uint32_t largest = 0;
    for (const MoeBlock & block : blocks_) {
        largest = std::max(largest, block.n_expert);
    }
    return largest;
}

uint32_t Catalog::n_moe_layer() const {
    std::set<uint32_t> layers;
    for (const MoeBlock & block : blocks_) {
        layers.insert(block.layer);
    }
    return static_cast<uint32_t>(layers.size());
}

uint32_t Catalog::n_keys() const {
    return blocks_.back().first_key + blocks_.back().n_expert;
}

uint64_t Catalog::expert_bytes() const {
    uint64_t bytes = 0;
    for (const MoeBlock & block : blocks_) {
        bytes += block.expert_bytes() * block.n_expert;
    }
    return bytes;
}

uint64_t Catalog::expert_bytes_max() const {
    uint64_t largest = 0;
    for (const MoeBlock & block : blocks_) {
        largest = std::max(largest, block.expert_bytes());
    }
    return largest;
}

std::vector<LayerBytes> Catalog::layer_bytes() const {
    std::vector<LayerBytes> layers;
    const auto at = [&](uint32_t layer) -> LayerBytes & {
        layers.resize(std::max<size_t>(layers.size(), layer + size_t{1}));
        return layers[layer];
    };
    for (const MoeBlock & block : blocks_) {
        LayerBytes & layer = at(block.layer);
        if (layer.expert == 0) {  // the first set: the second follows its routing
            layer.expert = block.expert_bytes();
        }
    }
    for (const DenseTensor & tensor : dense_) {
        if (const auto name = parse_layer(tensor.name); name && name->layer < n_layer_) {
            at(name->layer).dense += tensor.size;
        }
    }
    return layers;
}

const PartRef * Catalog::find_part(const std::string & tensor) const {
    const auto it = part_index_.find(tensor);
    return it == part_index_.end() ? nullptr : &it->second;
}

const DenseTensor * Catalog::find_dense(const std::string & tensor) const {
    const auto it = dense_index_.find(tensor);
    return it == dense_index_.end() ? nullptr : &dense_[it->second];
}

}  // namespace moe
