#include "load_scope.h"

#include "error.h"

#include "ggml-backend-impl.h"

#include <atomic>
#include <cstring>

namespace moe {

namespace {

std::atomic<bool> g_loading{false};
decltype(ggml_backend_reg_i::get_proc_address) g_cpu_get_proc_address = nullptr;

bool always() { return true; }

// llama.cpp pre-faults the whole file when it maps it, except on NUMA machines: there it maps without touching a page.
// So for the time of loading this is one.
void * get_proc_address(ggml_backend_reg_t reg, const char * name) {
    if (std::strcmp(name, "ggml_backend_cpu_is_numa") == 0) {
        return reinterpret_cast<void *>(always);
    }
    return g_cpu_get_proc_address(reg, name);
}

ggml_backend_reg_t cpu_reg() {
    return ggml_backend_dev_backend_reg(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
}

}  // namespace

LoadScope::LoadScope(PagedModel & model) {
    if (g_loading.exchange(true)) {
        throw Error(ExitCode::other, "another model is being loaded");
    }
    register_paging_device();
    set_loading_model(&model);
    g_cpu_get_proc_address = cpu_reg()->iface.get_proc_address;
    cpu_reg()->iface.get_proc_address = get_proc_address;
}

LoadScope::~LoadScope() {
    cpu_reg()->iface.get_proc_address = g_cpu_get_proc_address;
    set_loading_model(nullptr);
    g_loading.store(false);
}

}  // namespace moe
