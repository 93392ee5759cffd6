// What a layer finds of an expert that it needs.
#pragma once

#include <cstdint>

namespace moe {

// `speculative`: resident, because it was read ahead, and this is its first use. Values as in a route trace.
enum class Residency : uint8_t { miss = 0, hit = 1, speculative = 2 };

}  // namespace moe
