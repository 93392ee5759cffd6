// Temperatures come in thousandths, tenths or whole degrees Celsius, and no file says which.
#pragma once

#include <cstdint>
#include <optional>

namespace launcher {

class TemperatureScale {
public:
    // In degrees Celsius; nothing when the reading cannot be a temperature of a working device.
    std::optional<double> to_celsius(int64_t raw);

private:
    // Only ever grows. A sensor in tenths that cools from 30 to 14.9 degrees says 149, which alone would
    // read as whole degrees; having once said 300 it is known better.
    int64_t units_per_degree_ = 1;
};

}  // namespace launcher
