// Dense weights in anonymous memory, read past the page cache.
//
// llama.cpp fills a tensor of an overridden buffer type by copying from its file mapping, which would pull the
// file through the page cache. This buffer type ignores the pointer it is given and reads the bytes itself.
#pragma once

#include "catalog.h"
#include "shard_files.h"

#include "ggml-backend-impl.h"

#include <cstdint>
#include <string>

namespace moe {

class DenseBufferType {
public:
    static constexpr uint64_t kAlignment = 64;

    // Both must outlive this, and this every buffer made of it.
    DenseBufferType(const Catalog & catalog, const ShardFiles & files);
    DenseBufferType(const DenseBufferType &) = delete;
    DenseBufferType & operator=(const DenseBufferType &) = delete;

    ggml_backend_buffer_type_t handle() { return &buft_; }

    // The first read that failed, "" if none did: llama.cpp's loader has no way to be told.
    const std::string & failure() const { return failure_; }

    // For overrides: every tensor that this buffer type shall hold. Tables of which a token reads one row stay mapped.
    std::string pattern() const;
    uint64_t bytes() const;  // of those tensors, with padding

private:
    static ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t buft, size_t size);
    static void set_tensor(ggml_backend_buffer_t buffer, ggml_tensor * tensor, const void * data, size_t offset,
                           size_t size);

    const Catalog & catalog_;
    const ShardFiles & files_;
    ggml_backend_buffer_type buft_{};
    std::string failure_;
};

}  // namespace moe
