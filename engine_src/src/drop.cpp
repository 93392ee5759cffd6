#include "drop.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace moe {

uint32_t drop_cold_experts(const DropRule & rule, int32_t * experts, float * weights, uint32_t k,
                           const std::function<bool(int32_t expert)> & resident, std::vector<uint8_t> & dropped) {
    dropped.assign(k, 0);
    const double mass = std::accumulate(weights, weights + k, 0.0);
    if (k < 2 || !std::isfinite(mass)) {
        return 0;
    }
    const auto heaviest = static_cast<uint32_t>(std::max_element(weights, weights + k) - weights);
    const double threshold = static_cast<double>(rule.fraction) * mass / k;

    uint32_t n_dropped = 0;
    double surviving = mass;
    for (uint32_t i = 0; i < k; ++i) {
        if (i == heaviest || static_cast<double>(weights[i]) >= threshold || resident(experts[i])) {
            continue;
        }
        surviving -= static_cast<double>(weights[i]);
        weights[i] = 0;
        experts[i] = experts[heaviest];
        dropped[i] = 1;
        ++n_dropped;
    }
    if (n_dropped > 0 && rule.renormalise) {
        const double scale = mass / surviving;
        for (uint32_t i = 0; i < k; ++i) {
            weights[i] = static_cast<float>(static_cast<double>(weights[i]) * scale);
        }
    }
    return n_dropped;
}

}  // namespace moe
