// What must be different while llama.cpp loads a model whose experts are paged.
#pragma once

#include "paging_device.h"

namespace moe {

// From construction to destruction: expert buffers are made for `model`, and file mappings are not populated.
// One at a time in a process; throws Error(other) for a second one.
class LoadScope {
public:
    explicit LoadScope(PagedModel & model);
    ~LoadScope();
    LoadScope(const LoadScope &) = delete;
    LoadScope & operator=(const LoadScope &) = delete;
};

}  // namespace moe
