// The device while a program runs: device.csv, and the range that each sensor went through.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "csv_file.h"
#include "thermal.h"
#include "unique_fd.h"

namespace launcher {

class JsonWriter;

// A sensor that never moves under load is a set point or a stub, not a thermometer; only a series can tell.
struct SensorRange {
    std::string zone;
    std::string type;
    int64_t readings = 0;
    double min_c = 0;
    double max_c = 0;
};

class DeviceSeries {
public:
    // Finds what exists, opens it once, and writes the header.
    DeviceSeries(const std::string & proc_root, const std::string & sys_root, CsvFile & table);

    void sample(int64_t t_ms);
    const std::vector<SensorRange> & ranges() const { return ranges_; }

private:
    std::string_view read(const UniqueFd & fd);

    CsvFile & table_;
    UniqueFd meminfo_;
    UniqueFd loadavg_;
    std::vector<UniqueFd> clocks_;  // cap and current frequency of each policy in turn
    std::vector<UniqueFd> sensors_;
    std::vector<TemperatureScale> scales_;
    std::vector<SensorRange> ranges_;
    char buffer_[4096];
};

// Text that can stand in the header of a table unquoted.
std::string column_name(const std::string & text);

void write_json(JsonWriter & json, const std::vector<SensorRange> & ranges);

}  // namespace launcher
