#include "paging_device.h"

#include "catalog.h"

#include "ggml-backend-impl.h"
#include "ggml-cpu.h"

#include <atomic>
#include <cstring>

namespace moe {

namespace {

std::atomic<PagedModel *> g_loading_model{nullptr};

// buffer: a range of addresses that nobody is meant to read

struct ExpertBuffer {
    PagedModel * model = nullptr;
    void * base = nullptr;
};

ExpertBuffer & expert_buffer(ggml_backend_buffer_t buffer) { return *static_cast<ExpertBuffer *>(buffer->context); }

void expert_buffer_free(ggml_backend_buffer_t buffer) { delete &expert_buffer(buffer); }

void * expert_buffer_get_base(ggml_backend_buffer_t buffer) { return expert_buffer(buffer).base; }

const ggml_backend_buffer_i kExpertBufferInterface = [] {
    ggml_backend_buffer_i iface{};
    iface.free_buffer = expert_buffer_free;
    iface.get_base = expert_buffer_get_base;
    return iface;
}();

// buffer type

const char * expert_buft_get_name(ggml_backend_buffer_type_t) { return "MoE-paged"; }

// The experts are never loaded: a loader that wants to allocate them took a path that was not meant.
ggml_backend_buffer_t expert_buft_alloc_buffer(ggml_backend_buffer_type_t, size_t) { return nullptr; }

size_t expert_buft_get_alignment(ggml_backend_buffer_type_t) { return 32; }

bool is_expert_buffer_type(ggml_backend_buffer_type_t buft) { return buft->iface.get_name == expert_buft_get_name; }

ggml_backend_buffer_t buffer_of(const ggml_tensor * tensor) {
    return tensor->view_src != nullptr ? tensor->view_src->buffer : tensor->buffer;
}

// By the weight's name as well: to find a place for a tensor that was not overridden, the loader asks with an empty
// buffer of this type whether the device would do.
bool is_paged_matmul(const ggml_tensor * op) {
    if (op->op != GGML_OP_MUL_MAT_ID) {
        return false;
    }
    const ggml_backend_buffer_t buffer = buffer_of(op->src[0]);
    return buffer != nullptr && is_expert_buffer_type(buffer->buft) && is_expert_tensor(op->src[0]->name);
}

bool reads_experts(const ggml_tensor * op) {
    for (const ggml_tensor * src : op->src) {
        const ggml_backend_buffer_t buffer = src != nullptr ? buffer_of(src) : nullptr;
        if (buffer != nullptr && is_expert_buffer_type(buffer->buft)) {
            return true;
        }
    }
    return false;
}

bool changes_layout_only(ggml_op op) {
    return op == GGML_OP_NONE || op == GGML_OP_RESHAPE || op == GGML_OP_VIEW || op == GGML_OP_PERMUTE ||
           op == GGML_OP_TRANSPOSE;
}

// backend: one per llama context, with a CPU backend of its own

struct PagingBackend {
    explicit PagingBackend(ggml_backend_t cpu_backend) : cpu(cpu_backend) {}
    ~PagingBackend() { ggml_backend_free(cpu); }
    PagingBackend(const PagingBackend &) = delete;
    PagingBackend & operator=(const PagingBackend &) = delete;

    ggml_backend_t cpu;
    int n_threads = GGML_DEFAULT_N_THREADS;
};

const char * backend_get_name(ggml_backend_t) { return "MoE-paging"; }

void backend_free(ggml_backend_t backend) {
    delete static_cast<PagingBackend *>(backend->context);
    delete backend;
}

ggml_status backend_graph_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    auto & self = *static_cast<PagingBackend *>(backend->context);
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        const ggml_tensor * node = ggml_graph_node(graph, i);
        if (!is_paged_matmul(node)) {
            continue;
        }
        if (buffer_of(node->src[0])->context == nullptr) {
            return GGML_STATUS_FAILED;  // a model that was loaded without its data can be measured, not computed
        }
        return expert_buffer(buffer_of(node->src[0])).model->compute_graph(graph, self.cpu, self.n_threads);
    }
    ggml_backend_cpu_set_n_threads(self.cpu, self.n_threads);
    return ggml_backend_graph_compute(self.cpu, graph);
}

void backend_set_n_threads(ggml_backend_t backend, int n_threads) {
    static_cast<PagingBackend *>(backend->context)->n_threads = n_threads;
}

ggml_guid_t backend_guid() {
    static ggml_guid guid = {0x4d, 0x6f, 0x45, 0x2d, 0x70, 0x61, 0x67, 0x69, 0x6e, 0x67, 0x9c, 0x31, 0x07, 0xe8, 0x52, 0xb4};
    return &guid;
}

const ggml_backend_i kBackendInterface = [] {
    ggml_backend_i iface{};
    iface.get_name = backend_get_name;
    iface.free = backend_free;
    iface.graph_compute = backend_graph_compute;
    return iface;
}();

// device

const char * device_get_name(ggml_backend_dev_t) { return "MoE-paging"; }

const char * device_get_description(ggml_backend_dev_t) { return "experts paged from storage, computed by the CPU"; }

void device_get_memory(ggml_backend_dev_t, size_t * free, size_t * total) {
    *free = 0;
    *total = 0;
}

// ACCEL: llama_context initialises such devices by itself and gives them no layers.
enum ggml_backend_dev_type device_get_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_ACCEL; }

void device_get_props(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    *props = {};
    props->name = device_get_name(dev);
    props->description = device_get_description(dev);
    props->type = device_get_type(dev);
    props->caps.buffer_from_host_ptr = true;
    props->caps.mmap_support = true;
}

ggml_backend_t device_init_backend(ggml_backend_dev_t dev, const char *) {
    set_loading_model(nullptr);  // a context is being made, so loading is over
    ggml_backend_t cpu = ggml_backend_cpu_init();
    if (cpu == nullptr) {
        return nullptr;
    }
    return new ggml_backend{backend_guid(), kBackendInterface, dev, new PagingBackend(cpu)};
}

ggml_backend_buffer_type_t device_get_buffer_type(ggml_backend_dev_t) {
    return g_loading_model.load() != nullptr ? expert_buffer_type() : ggml_backend_cpu_buffer_type();
}

ggml_backend_buffer_t device_buffer_from_host_ptr(ggml_backend_dev_t, void * ptr, size_t size, size_t) {
    PagedModel * model = g_loading_model.load();
    if (model == nullptr) {
        return nullptr;
    }
    return ggml_backend_buffer_init(expert_buffer_type(), kExpertBufferInterface, new ExpertBuffer{model, ptr}, size);
}

bool device_supports_op(ggml_backend_dev_t, const ggml_tensor * op) {
    // There is nothing to compute in layout changes, but the scheduler asks, of the expert tensors themselves among others.
    if (is_paged_matmul(op) || changes_layout_only(op->op)) {
        return true;
    }
    return !reads_experts(op) && ggml_backend_dev_supports_op(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), op);
}

bool device_supports_buft(ggml_backend_dev_t, ggml_backend_buffer_type_t buft) {
    return is_expert_buffer_type(buft) ||
           ggml_backend_dev_supports_buft(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), buft);
}

const ggml_backend_device_i kDeviceInterface = [] {
    ggml_backend_device_i iface{};
    iface.get_name = device_get_name;
    iface.get_description = device_get_description;
    iface.get_memory = device_get_memory;
    iface.get_type = device_get_type;
    iface.get_props = device_get_props;
    iface.init_backend = device_init_backend;
    iface.get_buffer_type = device_get_buffer_type;
    iface.buffer_from_host_ptr = device_buffer_from_host_ptr;
    iface.supports_op = device_supports_op;
    iface.supports_buft = device_supports_buft;
    return iface;
}();

// registry

ggml_backend_reg_t paging_reg();

const char * reg_get_name(ggml_backend_reg_t) { return "MoE-paging"; }

size_t reg_get_device_count(ggml_backend_reg_t) { return 1; }

ggml_backend_dev_t reg_get_device(ggml_backend_reg_t, size_t) {
    static ggml_backend_device device{kDeviceInterface, paging_reg(), nullptr};
    return &device;
}

void * reg_get_proc_address(ggml_backend_reg_t, const char * name) {
    if (std::strcmp(name, "ggml_backend_set_n_threads") == 0) {
        return reinterpret_cast<void *>(backend_set_n_threads);
    }
    return nullptr;
}

ggml_backend_reg_t paging_reg() {
    static ggml_backend_reg reg{
        GGML_BACKEND_API_VERSION, {reg_get_name, reg_get_device_count, reg_get_device, reg_get_proc_address}, nullptr};
    return &reg;
}

}  // namespace

ggml_backend_buffer_type_t expert_buffer_type() {
    static ggml_backend_buffer_type buft = [] {
        ggml_backend_buffer_type type{};
        type.iface.get_name = expert_buft_get_name;
        type.iface.alloc_buffer = expert_buft_alloc_buffer;
        type.iface.get_alignment = expert_buft_get_alignment;
        type.device = reg_get_device(paging_reg(), 0);
        return type;
    }();
    return &buft;
}

void register_paging_device() { ggml_backend_register(paging_reg()); }

void set_loading_model(PagedModel * model) { g_loading_model.store(model); }

}  // namespace moe
