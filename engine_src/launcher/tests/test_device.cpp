#include <fcntl.h>

#include "check.h"
#include "device_layout.h"
#include "device_series.h"
#include "device_state.h"
#include "json_writer.h"
#include "thermal.h"

using launcher::CsvFile;
using launcher::DeviceSeries;
using launcher::DeviceState;
using launcher::TemperatureScale;
using launcher::UniqueFd;

static double once(int64_t raw) { return TemperatureScale().to_celsius(raw).value_or(-1); }

TEST(temperatures_in_three_units) {
    EQUAL(once(45), 45.0);
    EQUAL(once(450), 45.0);
    EQUAL(once(45000), 45.0);
    EQUAL(once(45678), 45.678);
    EQUAL(once(150000), 150.0);
    EQUAL(once(1200), 120.0);  // a hot sensor in tenths rather than one in thousandths at 1.2 degrees
}

TEST(temperatures_that_cannot_be) {
    for (const int64_t raw : {0, -1, -273000, 150001, 255000, 2147483647}) {
        EQUAL(once(raw), -1.0);
    }
}

TEST(temperature_scale_remembers_the_unit) {
    TemperatureScale tenths;
    EQUAL(*tenths.to_celsius(300), 30.0);
    EQUAL(*tenths.to_celsius(149), 14.9);
    TemperatureScale thousandths;
    THAT(!thousandths.to_celsius(0));
    EQUAL(*thousandths.to_celsius(30000), 30.0);
    THAT(!thousandths.to_celsius(900));
}

TEST(an_empty_device_has_nothing_but_a_time) {
    const check::TempDir dir;
    const DeviceState state = launcher::read_device_state(dir.path("proc"), dir.path("sys"));
    launcher::JsonWriter json;
    write_json(json, state);
    const std::string rest = json.text().substr(json.text().find(','));
    EQUAL(rest, ",\"mem_total_bytes\":null,\"mem_available_bytes\":null,\"swap_free_bytes\":null,\"load_1m\":null,"
                "\"cpu_busy_share\":null,\"cpufreq\":[],\"thermal\":[],\"battery\":null,\"psi\":null}");
}

TEST(zones_are_in_the_order_of_their_numbers) {
    const check::TempDir dir;
    for (const char * number : {"10", "9", "0"}) {
        dir.write(std::string("class/thermal/thermal_zone") + number + "/temp", "30000\n");
    }
    dir.write("class/thermal/cooling_device0/type", "fan\n");
    const auto zones = launcher::find_thermal_zones(dir.path());
    EQUAL(zones.size(), size_t{3});
    EQUAL(zones[1].zone, "thermal_zone9");
    EQUAL(zones[2].zone, "thermal_zone10");
    EQUAL(zones[2].type, "");
}

TEST(the_battery_is_the_device_s_own) {
    const check::TempDir dir;
    dir.write("class/power_supply/ac/type", "Mains\n");
    dir.write("class/power_supply/pen/type", "Battery\n");
    dir.write("class/power_supply/pen/scope", "Device\n");
    EQUAL(launcher::find_battery(dir.path()), "");
    dir.write("class/power_supply/qcom-battery/type", "Battery\n");
    EQUAL(launcher::find_battery(dir.path()), dir.path("class/power_supply/qcom-battery"));
}

TEST(device_series_follows_changing_files) {
    const check::TempDir dir;
    dir.write("proc/meminfo", "MemTotal: 10 kB\nMemFree: 1 kB\nMemAvailable:  4 kB\nSwapFree: 2 kB\n");
    dir.write("proc/loadavg", "1.25 0.5 0.1 3/99 1234\n");
    dir.write("sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq", "1800000\n");
    dir.write("sys/class/thermal/thermal_zone0/type", "cpu,0 \"x\"\n");
    dir.write("sys/class/thermal/thermal_zone0/temp", "41000\n");
    dir.write("sys/class/thermal/thermal_zone1/type", "trip\n");
    dir.write("sys/class/thermal/thermal_zone1/temp", "99600\n");
    dir.write("sys/class/thermal/thermal_zone2/temp/not_a_file", "");
    CsvFile table(UniqueFd(open(dir.path("d.csv").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)));
    DeviceSeries series(dir.path("proc"), dir.path("sys"), table);
    series.sample(0);
    dir.write("sys/class/thermal/thermal_zone0/temp", "43500\n");
    dir.write("sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq", "900000\n");
    dir.write("proc/loadavg", "");
    series.sample(250);
    table.flush();
    EQUAL(dir.read("d.csv"),
          "t_ms,mem_available_bytes,load_1m,running_tasks,swap_free_bytes,policy0.max_khz,policy0.cur_khz,"
          "thermal_zone0.cpu_0__x_.temp_c,thermal_zone1.trip.temp_c,thermal_zone2..temp_c\n"
          "0,4096,1.25,3,2048,1800000,,41.00,99.60,\n"
          "250,4096,,,2048,900000,,43.50,99.60,\n");
    launcher::JsonWriter json;
    write_json(json, series.ranges());
    EQUAL(json.text(),
          "[{\"zone\":\"thermal_zone0\",\"type\":\"cpu,0 \\\"x\\\"\",\"readings\":2,\"min_c\":41.000000,"
          "\"max_c\":43.500000,\"constant\":false},"
          "{\"zone\":\"thermal_zone1\",\"type\":\"trip\",\"readings\":2,\"min_c\":99.600000,\"max_c\":99.600000,"
          "\"constant\":true},"
          "{\"zone\":\"thermal_zone2\",\"type\":\"\",\"readings\":0,\"min_c\":null,\"max_c\":null,\"constant\":null}]");
}
