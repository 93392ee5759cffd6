// The ggml device that computes with paged experts, and its buffer type.
//
// It takes every operation that the CPU device can do, not only the expert matmuls: a model's graph then stays in one
// piece, and what happens between two matmuls costs no change of device.
//
// A device can be registered but never unregistered, so there is one for the process. What it does is decided by
// the buffer a weight lies in: every expert buffer belongs to a PagedModel.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"

namespace moe {

// What the device needs of a model whose experts are paged.
class PagedModel {
public:
    virtual ~PagedModel() = default;

    // Computes a graph that multiplies by experts of this model, with `cpu` for the arithmetic. Called from C: must not throw.
    virtual ggml_status compute_graph(ggml_cgraph * graph, ggml_backend_t cpu, int n_threads) noexcept = 0;
};

// Registers the device with ggml, once.
void register_paging_device();

// For llama_model_params.tensor_buft_overrides.
ggml_backend_buffer_type_t expert_buffer_type();

// From now on expert buffers are made for `model`, and the device's default buffer type is the expert one: only for a
// device's default type does llama.cpp hand over an address range of its file mapping instead of reading the
// tensors. nullptr ends that, and so does the first llama context; the default is then the CPU's, so that
// outputs live in host memory and the scheduler sees no reason to copy.
void set_loading_model(PagedModel * model);

}  // namespace moe
