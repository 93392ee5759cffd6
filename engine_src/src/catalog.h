// What lies where in a GGUF model: the routed experts as slices, every other tensor as one range.
// Knows the file format, not llama.cpp's model code: an architecture counts as MoE when it stores its
// experts in fused tensors of the usual names, so there is no list of architectures to maintain.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace moe {

// Experts' weights as llama.cpp names them. `chexps` is grovemoe's second set of experts, `gate_up` a
// fused pair. Biases and scales are small and stay with the dense weights.
extern const char * const kExpertTensorPattern;
bool is_expert_tensor(const std::string & name);

// One matrix of every expert of a block: expert e occupies slice_bytes from offset + e * slice_bytes.
struct ExpertPart {
    std::string tensor;
    uint32_t shard = 0;
    uint64_t offset = 0;
    uint64_t slice_bytes = 0;
    uint32_t n_in = 0;   // floats in a row of the matmul's input
    uint32_t n_out = 0;  // and of its output
};

// Experts that are routed together: the ids of one top-k select from one block. A layer has one block,
// or two where the architecture has two sets of experts.
struct MoeBlock {
    uint32_t layer = 0;
    uint32_t n_expert = 0;
    uint32_t first_key = 0;  // expert e of this block has the model-wide key first_key + e
    std::vector<ExpertPart> parts;

    uint64_t expert_bytes() const;  // of one expert, all parts
};

struct DenseTensor {
    std::string name;
    uint32_t shard = 0;
    uint64_t offset = 0;
    uint64_t size = 0;
    bool sparse_rows = false;  // an embedding table of which a token reads a single row
};

struct PartRef {
    uint32_t block = 0;
    uint32_t part = 0;
};

// What one layer of the model weighs: the tensors named blk.N.*
struct LayerBytes {
    uint64_t expert = 0;  // one routed expert of the set that the router chooses from; 0: the layer has none
    uint64_t dense = 0;   // all that is not a routed expert
};

class Catalog {
public:
    // Reads the metadata of `path` and of all its further shards. Throws Error(model) with a line that says
    // what is wrong when the file is absent, no GGUF, truncated, incomplete, or holds no fused experts.
    static Catalog read(const std::string & path);

    const std::vector<std::string> & shards() const { return shards_; }
    const std::vector<MoeBlock> & blocks() const { return blocks_; }
    const std::vector<DenseTensor> & dense() const { return dense_; }
    const MoeBlock & block(uint32_t index) const { return blocks_[index]; }

    uint32_t n_expert_used() const { return n_expert_used_; }  // top-k the model was trained with
    uint32_t n_expert() const;                                 // of the largest block
    uint32_t n_moe_layer() const;
    uint32_t n_keys() const;  // experts of all blocks
    uint64_t expert_bytes() const;
    uint64_t expert_bytes_max() const;
    std::vector<LayerBytes> layer_bytes() const;  // of every layer, MoE or not

    const PartRef * find_part(const std::string & tensor) const;       // nullptr: not an expert tensor
    const DenseTensor * find_dense(const std::string & tensor) const;  // nullptr: not a dense tensor

private:
    void add_shard(const std::string & path, uint32_t shard);
    void finish();

    std::vector<std::string> shards_;
    std::vector<MoeBlock> blocks_;
    std::vector<DenseTensor> dense_;
    std::unordered_map<std::string, PartRef> part_index_;
    std::unordered_map<std::string, size_t> dense_index_;
    uint32_t n_expert_used_ = 0;
    // Layers beyond predict further tokens (MTP): loaded for speculative decoding only, so nothing routes to their experts.
    uint64_t n_layer_ = 0;
};

}  // namespace moe
