#include "device_series.h"

#include <algorithm>

#include "device_layout.h"
#include "files.h"
#include "json_writer.h"

namespace launcher {

std::string column_name(const std::string & text) {
    std::string name = text;
    for (char & letter : name) {
        const bool plain = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                           (letter >= '0' && letter <= '9') || letter == '-' || letter == '_' || letter == '+';
        letter = plain ? letter : '_';
    }
    return name;
}

DeviceSeries::DeviceSeries(const std::string & proc_root, const std::string & sys_root, CsvFile & table)
    : table_(table), meminfo_(open_to_read(proc_root + "/meminfo")), loadavg_(open_to_read(proc_root + "/loadavg")) {
    for (const char * name : {"t_ms", "mem_available_bytes", "load_1m", "running_tasks", "swap_free_bytes"}) {
        table_.text(name);
    }
    for (const CpuPolicy & policy : find_cpu_policies(sys_root)) {
        table_.text(policy.policy + ".max_khz");
        table_.text(policy.policy + ".cur_khz");
        clocks_.push_back(open_to_read(policy.dir + "/scaling_max_freq"));
        clocks_.push_back(open_to_read(policy.dir + "/scaling_cur_freq"));
    }
    for (const ThermalZone & zone : find_thermal_zones(sys_root)) {
        table_.text(zone.zone + "." + column_name(zone.type) + ".temp_c");
        sensors_.push_back(open_to_read(zone.temp_path));
        ranges_.push_back({zone.zone, zone.type, 0, 0, 0});
    }
    scales_.resize(sensors_.size());
    table_.end_row();
}

std::string_view DeviceSeries::read(const UniqueFd & fd) {
    return read_again(fd.get(), buffer_, sizeof buffer_);
}

void DeviceSeries::sample(int64_t t_ms) {
    table_.integer(t_ms);

    const std::string_view memory = read(meminfo_);
    const auto bytes = [](std::optional<int64_t> kib) {
        return kib ? std::optional<int64_t>(*kib * 1024) : std::nullopt;
    };
    size_t at = 0;
    table_.integer(bytes(int_after(memory, "\nMemAvailable:", at)));
    const auto swap_free = bytes(int_after(memory, "\nSwapFree:", at));

    const std::string_view load = read(loadavg_);  // "0.31 0.20 0.11 2/105 6309": tasks wanting a core / all
    table_.decimal(decimal_after(load, ""));
    const size_t slash = load.find('/');
    const size_t blank = slash == std::string_view::npos ? slash : load.rfind(' ', slash);
    table_.integer(blank == std::string_view::npos ? std::nullopt : parse_int(load.substr(blank)));
    table_.integer(swap_free);

    for (const UniqueFd & clock : clocks_) {
        table_.integer(parse_int(read(clock)));
    }
    for (size_t i = 0; i < sensors_.size(); ++i) {
        const auto raw = parse_int(read(sensors_[i]));
        const auto celsius = raw ? scales_[i].to_celsius(*raw) : std::nullopt;
        table_.decimal(celsius);
        if (celsius) {
            SensorRange & range = ranges_[i];
            range.min_c = range.readings == 0 ? *celsius : std::min(range.min_c, *celsius);
            range.max_c = range.readings == 0 ? *celsius : std::max(range.max_c, *celsius);
            ++range.readings;
        }
    }
    table_.end_row();
}

void write_json(JsonWriter & json, const std::vector<SensorRange> & ranges) {
    json.begin_array();
    for (const SensorRange & range : ranges) {
        json.begin_object().field("zone", range.zone).field("type", range.type).field("readings", range.readings);
        const bool any = range.readings > 0;
        json.field("min_c", any ? std::optional<double>(range.min_c) : std::nullopt);
        json.field("max_c", any ? std::optional<double>(range.max_c) : std::nullopt);
        const bool can_tell = range.readings > 1;
        json.field("constant", can_tell ? std::optional<bool>(range.min_c >= range.max_c) : std::nullopt);
        json.end_object();
    }
    json.end_array();
}

}  // namespace launcher
