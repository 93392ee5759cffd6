// What one MoE layer took in, decided and put out, of every llama_decode, as raw rows: for --moe-dump (docs/engine.md).
//
// llama.cpp reuses the memory of a graph's tensors as soon as nothing needs them any more, so each quantity is copied
// after the node that completes it or uses it last.
#pragma once

#include "call_info.h"
#include "catalog.h"
#include "dump_files.h"
#include "error.h"
#include "model_facts.h"
#include "node_watcher.h"
#include "options.h"
#include "telemetry.h"

#include "ggml.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace moe {

// Facts for the reader that the rows do not carry.
struct DumpHead {
    std::string model;
    std::string arch;
    uint32_t n_expert_used = 0;   // effective
    bool routing_edited = false;  // ids or weights are not the router's: forced or dropped routes
};

class LayerDump final : public NodeWatcher {
public:
    // Opens all files. Throws Error: usage when the layer has no routed experts, model when it has two sets of them,
    // io when a file cannot be written.
    LayerDump(const MoeDump & request, const Catalog & catalog, const DumpHead & head);

    bool wants(const ggml_tensor & node) noexcept override;
    void computed(const ggml_tensor & node) noexcept override;

    // Around every llama_decode. The end throws what went wrong meanwhile: Error(io), or Error(model) when the graph
    // does not have every quantity.
    void begin_call(const CallInfo & call);
    void end_call();

    // Writes the meta file: a dump without one is of a run that did not end. Throws Error(io).
    void close();

private:
    using Quantity = DumpQuantity;

    struct Column {
        std::unique_ptr<LineFile> file;
        int64_t width = 0;    // numbers in a row; 0: no row yet
        int64_t n_rows = -1;  // of the call at hand; -1: not seen
    };

    Column & column(Quantity quantity) { return columns_[static_cast<size_t>(quantity)]; }
    const Column & column(Quantity quantity) const { return columns_[static_cast<size_t>(quantity)]; }
    bool is_expert_matmul(const ggml_tensor & node) const;
    bool is_output(const ggml_tensor & node) const;
    std::optional<Quantity> completes(const ggml_tensor & node) const;
    void take(Quantity quantity, const ggml_tensor & tensor, ggml_type type, int64_t width, int64_t n_rows,
              size_t stride);
    std::string meta() const;

    const MoeDump request_;
    const MoeBlock block_;
    const DumpHead head_;
    const std::string layer_suffix_;  // of llama.cpp's names: "-3"
    std::vector<Column> columns_;     // by quantity
    LineFile meta_;
    std::string calls_;

    // Of the call at hand.
    CallInfo call_;
    const ggml_tensor * argsort_ = nullptr;
    const ggml_tensor * weighted_ = nullptr;
    int64_t n_used_ = 0;
    std::optional<Error> failure_;
};

// Opens what --moe-dump asks for; empty without it.
std::optional<LayerDump> open_dump(const Options & options, const ModelFacts & facts);

}  // namespace moe
