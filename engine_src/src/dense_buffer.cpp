#include "dense_buffer.h"

#include "aligned_memory.h"
#include "error.h"

#include <cstring>
#include <exception>

namespace moe {

namespace {

struct DenseBuffer {
    AlignedMemory memory;
};

AlignedMemory & memory_of(ggml_backend_buffer_t buffer) { return static_cast<DenseBuffer *>(buffer->context)->memory; }

const char * get_name(ggml_backend_buffer_type_t) { return "MoE-dense"; }
size_t get_alignment(ggml_backend_buffer_type_t) { return DenseBufferType::kAlignment; }
bool is_host(ggml_backend_buffer_type_t) { return true; }

void free_buffer(ggml_backend_buffer_t buffer) { delete static_cast<DenseBuffer *>(buffer->context); }
void * get_base(ggml_backend_buffer_t buffer) { return memory_of(buffer).data(); }

void memset_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, uint8_t value, size_t offset, size_t size) {
    std::memset(static_cast<std::byte *>(tensor->data) + offset, value, size);
}

void get_tensor(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    std::memcpy(data, static_cast<const std::byte *>(tensor->data) + offset, size);
}

void clear(ggml_backend_buffer_t buffer, uint8_t value) {
    std::memset(memory_of(buffer).data(), value, memory_of(buffer).size());
}

}  // namespace

DenseBufferType::DenseBufferType(const Catalog & catalog, const ShardFiles & files) : catalog_(catalog), files_(files) {
    buft_.iface.get_name = get_name;
    buft_.iface.alloc_buffer = alloc_buffer;
    buft_.iface.get_alignment = get_alignment;
    buft_.iface.is_host = is_host;
    // No device: a device's default buffer type would be given the file mapping instead of being filled.
    buft_.device = nullptr;
    buft_.context = this;
}

ggml_backend_buffer_t DenseBufferType::alloc_buffer(ggml_backend_buffer_type_t buft, size_t size) {
    ggml_backend_buffer_i iface{};
    iface.free_buffer = free_buffer;
    iface.get_base = get_base;
    iface.memset_tensor = memset_tensor;
    iface.set_tensor = set_tensor;
    iface.get_tensor = get_tensor;
    iface.clear = clear;
    try {
        return ggml_backend_buffer_init(buft, iface, new DenseBuffer{AlignedMemory(size)}, size);
    } catch (const std::exception &) {
        return nullptr;  // llama.cpp reports that the buffer could not be had
    }
}

void DenseBufferType::set_tensor(ggml_backend_buffer_t buffer, ggml_tensor * tensor, const void * data, size_t offset,
                                 size_t size) {
    auto & self = *static_cast<DenseBufferType *>(buffer->buft->context);
    auto * dest = static_cast<std::byte *>(tensor->data) + offset;
    const DenseTensor * source = self.catalog_.find_dense(tensor->name);
    if (source == nullptr) {
        std::memcpy(dest, data, size);  // made up by the loader, not in the file
        return;
    }
    try {
        self.files_.read_unaligned(source->shard, source->offset + offset, size, dest);
    } catch (const std::exception & error) {
        if (self.failure_.empty()) {
            self.failure_ = error.what();
        }
    }
}

std::string DenseBufferType::pattern() const {
    std::string sparse;
    for (const DenseTensor & tensor : catalog_.dense()) {
        if (tensor.sparse_rows) {
            sparse += (sparse.empty() ? "" : "|") + tensor.name.substr(0, tensor.name.find('.'));
        }
    }
    return sparse.empty() ? "^" : "^(?!(" + sparse + ")\\.)";
}

uint64_t DenseBufferType::bytes() const {
    uint64_t bytes = 0;
    for (const DenseTensor & tensor : catalog_.dense()) {
        if (!tensor.sparse_rows) {
            bytes += (tensor.size + kAlignment - 1) / kAlignment * kAlignment;
        }
    }
    return align_up(bytes);
}

}  // namespace moe
