// Dropping of light experts that would have to be read: an approximation, chosen by what the cache holds. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace moe {

struct DropRule {
    float fraction = 0;       // of a uniform weight, 0 .. 1
    bool renormalise = true;  // survivors take over the mass of the dropped
};

// One token's routing: k different experts and their weights. Both are edited in place.
//
// An expert is dropped when it is not the heaviest of the routing (the first of equals), not resident, and lighter
// than `fraction` times a uniform weight. Uniform is the routing's own mass over k: 1/k where weights sum to one,
// and the same cut for models that scale their weights or leave them unnormalised.
//
// A dropped slot gets weight 0 and the heaviest expert's id, which is needed anyway, so that the layer computes as
// ever and reads nothing for it. With `renormalise` each survivor is scaled by original over surviving mass.
//
// `dropped` gets k entries, 1 for a dropped slot. Returns how many there are: none for k = 1, and none when the mass
// is not finite. `resident` is asked only about experts light enough to be dropped.
uint32_t drop_cold_experts(const DropRule & rule, int32_t * experts, float * weights, uint32_t k,
                           const std::function<bool(int32_t expert)> & resident, std::vector<uint8_t> & dropped);

}  // namespace moe
