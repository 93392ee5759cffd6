#include "thermal.h"

#include <algorithm>

namespace launcher {

std::optional<double> TemperatureScale::to_celsius(int64_t raw) {
    constexpr int64_t lowest_c = 1, highest_c = 150;
    if (raw > highest_c * 1000 || raw < lowest_c) {
        return std::nullopt;
    }
    const int64_t at_least = raw > highest_c * 10 ? 1000 : raw > highest_c ? 10 : 1;
    units_per_degree_ = std::max(units_per_degree_, at_least);
    const double celsius = static_cast<double>(raw) / static_cast<double>(units_per_degree_);
    if (celsius < lowest_c) {
        return std::nullopt;
    }
    return celsius;
}

}  // namespace launcher
