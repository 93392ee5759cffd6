"""What phones of several makers print of battery and heat."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.targets.dumpsys import (
    Battery,
    Temperature,
    Thermal,
    parse_battery,
    parse_thermal,
)

BATTERY = """\
Current Battery Service state:
  AC powered: false
  USB powered: true
  Wireless powered: false
  Dock powered: false
  Max charging current: 500000
  Max charging voltage: 5000000
  Charge counter: 3511000
  status: 2
  health: 2
  present: true
  level: 87
  scale: 100
  voltage: 4230
  temperature: 287
  technology: Li-ion
"""

THERMAL = """\
IsStatusOverride: false
ThermalEventListeners:
\tcallbacks: 1
\tkilled: false
\tbroadcasts count: -1
Thermal Status: 2
Cached temperatures:
\tTemperature{mValue=99.0, mType=3, mName=skin, mStatus=3}
HAL Ready: true
HAL connection:
\tThermalHAL 2.0 connected: yes
Current temperatures from HAL:
\tTemperature{mValue=38.125, mType=3, mName=VIRTUAL-SKIN, mStatus=2}
\tTemperature{mValue=61.0, mType=0, mName=big, one, mStatus=0}
\tTemperature{mValue=NaN, mType=1, mName=GPU, mStatus=0}
\tTemperature{mValue=3700.0, mType=6, mName=vbat, mStatus=0}
\tTemperature{mValue=0.0, mType=4, mName=USB, mStatus=0}
Current cooling devices from HAL:
\tCoolingDevice{mValue=0, mType=2, mName=thermal-cpufreq-0}
Temperature static thresholds from HAL:
\tTemperatureThreshold{mType=3, mName=VIRTUAL-SKIN, mHotThrottlingThresholds=[NaN, 39.0]}
"""


def test_a_battery_is_read() -> None:
    assert parse_battery(BATTERY) == Battery(87.0, 28.7, "charging", ("USB",), False)
    unplugged = BATTERY.replace("USB powered: true", "USB powered: false")
    assert parse_battery(unplugged.replace("status: 2", "status: 3")) == Battery(
        87.0, 28.7, "discharging", (), False
    )


def test_values_that_somebody_made_up_are_marked() -> None:
    text = BATTERY.replace("state:\n", "state:\n  (UPDATES STOPPED -- use 'reset' to restart)\n")
    found = parse_battery(text)
    assert found is not None
    assert found.made_up


def test_missing_parts_of_a_battery_are_none() -> None:
    assert parse_battery("Can't find service: battery") is None
    assert parse_battery("") is None
    assert parse_battery("level: 1\nscale: 2\ntemperature: -999\nstatus: 17\n") == Battery(
        50.0, None, None, None, False
    )
    assert parse_battery("level: 300\ntemperature: 300") == Battery(None, 30.0, None, None, False)
    assert parse_battery("level: 50\nscale: 0\n") == Battery(50.0, None, None, None, False)


def test_heat_is_read_from_what_is_measured_now() -> None:
    assert parse_thermal(THERMAL) == Thermal(
        2,
        False,
        (
            Temperature("VIRTUAL-SKIN", "skin", 38.125, 2),
            Temperature("big, one", "cpu", 61.0, 0),
            Temperature("GPU", "gpu", None, 0),
            Temperature("USB", "usb_port", None, 0),
        ),
    )


def test_the_last_known_heat_stands_in_for_the_present_one() -> None:
    text = THERMAL.replace("\tTemperature{mValue", "\tOther{mValue", 6).replace(
        "\tOther{mValue=99.0", "\tTemperature{mValue=99.0"
    )
    found = parse_thermal(text)
    assert found is not None
    assert found.temperatures == (Temperature("skin", "skin", 99.0, 3),)


def test_a_maker_that_numbers_kinds_its_own_way_says_them_in_the_name() -> None:
    found = parse_thermal(
        "Current temperatures from HAL:\n"
        " Temperature{mValue=24.0, mType=1, mName=TYPE_CPU, mStatus=0}\n"
        " Temperature{mValue=-99.9, mType=6, mName=TYPE_POWER_AMPLIFIER, mStatus=9}\n"
    )
    assert found == Thermal(
        None,
        False,
        (
            Temperature("TYPE_CPU", "cpu", 24.0, 0),
            Temperature("TYPE_POWER_AMPLIFIER", "power_amplifier", None, None),
        ),
    )


def test_no_thermal_service_is_none_and_an_override_is_marked() -> None:
    assert parse_thermal("Can't find service: thermalservice\n") is None
    assert parse_thermal("") is None
    assert parse_thermal("IsStatusOverride: true\nThermal Status: 4\n") == Thermal(4, True, ())
    assert parse_thermal("Thermal Status: 42\n") is None


LINES = st.lists(
    st.sampled_from((BATTERY + THERMAL).splitlines())
    | st.text(max_size=40)
    | st.from_regex(r"Temperature\{m(Value|Type|Name)=.{0,10}, mName=.{0,10}\}?", fullmatch=True)
    | st.from_regex(r"(level|scale|status|temperature|USB powered): .{0,12}", fullmatch=True),
    max_size=30,
)


@given(LINES)
def test_any_text_gives_values_that_make_sense_or_none(lines: list[str]) -> None:
    text = "\n".join(lines)
    battery = parse_battery(text)
    if battery is not None:
        assert battery.level_pct is None or 0 <= battery.level_pct <= 100
        assert battery.temp_c is None or 1 <= battery.temp_c <= 150
    thermal = parse_thermal(text)
    if thermal is not None:
        assert thermal.status is None or 0 <= thermal.status <= 6
        for one in thermal.temperatures:
            assert one.name
            assert one.temp_c is None or 1 <= one.temp_c <= 150
            assert one.status is None or 0 <= one.status <= 6


@given(st.integers(0, 100), st.integers(10, 1500), st.sampled_from([(1, "unknown"), (5, "full")]))
def test_what_is_printed_is_read(level: int, tenths: int, status: tuple[int, str]) -> None:
    text = f"  status: {status[0]}\n  level: {level}\n  temperature: {tenths}\n"
    assert parse_battery(text) == Battery(float(level), tenths / 10, status[1], None, False)
