"""A phone that hides its sensors from adb, and says them through its services."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
from test_adb_dumpsys import BATTERY, THERMAL

from harness.analysis.cpu_zones import hottest_cpu
from harness.device.android_state import completed, filled, throttling_in_words
from harness.readings import BatteryState, DeviceState, ThermalState
from harness.records import TargetId
from harness.targets.link import Finished
from harness.targets.target import Target


class Phone:
    def __init__(self, kind: str = "adb", **services: str) -> None:
        self.id = TargetId(kind, "phone")
        self.services = {"thermalservice": THERMAL, "battery": BATTERY} | services
        self.asked: list[str] = []

    def call(self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Finished:
        assert argv[0] == "dumpsys"
        self.asked.append(argv[1])
        return Finished(0, self.services[argv[1]].encode(), b"")

    def as_target(self) -> Target:
        return cast(Target, self)


def test_what_sysfs_hides_comes_from_the_services() -> None:
    state = completed(DeviceState(load_1m=1.0), Phone().as_target())
    hottest = hottest_cpu(state)
    assert (hottest.temp_c, hottest.zone) == (61.0, "thermalservice.cpu-big, one")
    assert state.battery == BatteryState(28.7, 87.0, "Charging")
    assert state.load_1m == 1.0


def test_what_the_launcher_has_read_is_not_asked_for() -> None:
    phone = Phone()
    state = DeviceState(
        thermal=(ThermalState("thermal_zone0", "cpu-0-0", 40.0),),
        battery=BatteryState(capacity_pct=50.0),
    )
    assert completed(state, phone.as_target()) == state
    assert phone.asked == []


def test_no_other_target_has_such_services() -> None:
    phone = Phone("ssh")
    assert completed(DeviceState(), phone.as_target()) == DeviceState()
    assert throttling_in_words(phone.as_target()) is None
    assert phone.asked == []


def test_a_battery_that_somebody_made_up_is_none() -> None:
    made_up = Phone(battery=BATTERY + "  (UPDATES STOPPED -- use 'reset' to restart)\n")
    assert completed(DeviceState(), made_up.as_target()).battery is None


def test_services_that_are_not_there_leave_the_state_as_it_is() -> None:
    none = Phone(thermalservice="Can't find service: thermalservice", battery="Can't find service")
    assert completed(DeviceState(), none.as_target()) == DeviceState()
    assert throttling_in_words(none.as_target()) is None


@pytest.mark.parametrize(
    ("status", "words"), [(0, None), (1, None), (2, "moderate"), (3, "severe")]
)
def test_android_says_itself_that_it_throttles(status: int, words: str | None) -> None:
    text = THERMAL.replace("Thermal Status: 2", f"Thermal Status: {status}")
    assert throttling_in_words(Phone(thermalservice=text).as_target()) == words
    overridden = text.replace("IsStatusOverride: false", "IsStatusOverride: true")
    assert throttling_in_words(Phone(thermalservice=overridden).as_target()) is None


def test_a_cells_states_get_what_only_the_services_show() -> None:
    measured = DeviceState(load_1m=2.0, battery=BatteryState(temp_c=30.0))
    seen = completed(DeviceState(load_1m=1.0), Phone().as_target())
    state = filled(measured, seen)
    assert state is not None
    assert state.load_1m == 2.0
    assert hottest_cpu(state).temp_c == 61.0
    assert state.battery == BatteryState(28.7, 87.0, "Charging")


def test_a_cells_own_sensors_are_left_alone() -> None:
    zone = ThermalState("thermal_zone0", "cpu-0-0", 40.0)
    measured = DeviceState(thermal=(zone,), battery=BatteryState(capacity_pct=50.0))
    other = DeviceState(thermal=(ThermalState("thermal_zone0", "cpu-0-0", 41.0),))
    assert filled(measured, other) == measured
    assert filled(measured, None) == measured
    assert filled(None, other) is None
