"""What a phone hides in sysfs from those who come over adb, and says through its services.

Only where the launcher's state lacks it: two services more to ask take the better part of a second.
"""

from __future__ import annotations

import dataclasses

from harness.analysis.cpu_zones import cpu_rank
from harness.readings import BatteryState, DeviceState, ThermalState
from harness.targets.android import read_battery, read_thermal
from harness.targets.dumpsys import THERMAL_STATUS
from harness.targets.target import Target

# in the place of a zone's name
SERVICE = "thermalservice"
# Android's words for the heat of the device as a whole; below, nothing is slowed for it
_MODERATE = 2


def is_phone(target: Target) -> bool:
    """Whether there are services to ask."""
    return target.id.kind == "adb"


def completed(state: DeviceState, target: Target) -> DeviceState:
    """The state, with the CPU's temperature and the battery as `dumpsys` has them where it lacks
    them; what somebody overrode there is left out."""
    if not is_phone(target):
        return state
    if not any(cpu_rank(t.type) is not None for t in state.thermal):
        thermal = read_thermal(target.call)
        found = () if thermal is None else thermal.temperatures
        state = dataclasses.replace(
            state,
            thermal=(
                *state.thermal,
                *(ThermalState(SERVICE, f"{t.kind}-{t.name}", t.temp_c) for t in found),
            ),
        )
    if state.battery is None or state.battery.capacity_pct is None:
        battery = read_battery(target.call)
        if battery is not None and not battery.made_up:
            state = dataclasses.replace(
                state,
                battery=BatteryState(
                    battery.temp_c, battery.level_pct, (battery.status or "").capitalize() or None
                ),
            )
    return state


def filled(state: DeviceState | None, other: DeviceState | None) -> DeviceState | None:
    """The launcher's state of a cell with what only `other`, of about the same moment, shows."""
    if state is None or other is None:
        return state
    heat = [t for t in other.thermal if t.zone == SERVICE]
    battery = state.battery
    if battery is None or battery.capacity_pct is None:
        battery = other.battery or battery
    return dataclasses.replace(state, thermal=(*state.thermal, *heat), battery=battery)


def heat_status(target: Target) -> str | None:
    """Android's word for the heat of the whole device; None where there is none to be had."""
    thermal = read_thermal(target.call) if is_phone(target) else None
    if thermal is None or thermal.status is None or thermal.made_up:
        return None
    return THERMAL_STATUS[thermal.status]


def throttling_in_words(target: Target) -> str | None:
    """What Android says of its own throttling, from *moderate* on; None where it says nothing."""
    thermal = read_thermal(target.call) if is_phone(target) else None
    if thermal is None or thermal.status is None or thermal.made_up:
        return None
    return THERMAL_STATUS[thermal.status] if thermal.status >= _MODERATE else None
