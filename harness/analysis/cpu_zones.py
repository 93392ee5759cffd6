"""Which thermal zones show the CPU, and which readings are no temperature at all. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.readings import DeviceState, ThermalState

# Zone types that follow the CPU, best first; vendors' own names as they appear in sysfs.
_CPU_TYPES = (
    re.compile(r"cpu|x86_pkg|coretemp|k10temp|zenpower|^(big|mid|little)$", re.IGNORECASE),
    re.compile(r"^(soc|ap|apc\d*|tsens)([-_].*|\d*)$", re.IGNORECASE),
    re.compile(r"^acpitz$", re.IGNORECASE),
)
_NOT_CPU = re.compile(r"batt|gpu|skin|modem|pmic|charger|usb|wlan|wifi|nsp|ddr", re.IGNORECASE)
# a reading that never moves and stands this high is a threshold, not a temperature
TRIP_POINT_C = 90.0
STATES_TO_CALL_CONSTANT = 3
# the same for looks that are seconds apart, between which a sensor of whole degrees may well stand
LOOKS_TO_CALL_CONSTANT = 10
# beyond these the launcher takes nothing for a temperature (docs/launcher.md)
_LOWEST_C, _HIGHEST_C = 1.0, 150.0

Zone = tuple[str, str | None]


@dataclass(frozen=True)
class Hottest:
    """The hottest zone of the CPU; None where no zone is one, or all of them were turned down."""

    temp_c: float | None = None
    zone: str | None = None
    rejected: tuple[str, ...] = ()


def cpu_rank(kind: str | None) -> int | None:
    """How well a zone of this type follows the CPU, 0 best; None: it does not."""
    if kind is None or _NOT_CPU.search(kind):
        return None
    for rank, pattern in enumerate(_CPU_TYPES):
        if pattern.search(kind):
            return rank
    return None


def plausible(temp_c: float | None) -> float | None:
    """The reading, if it can be a temperature."""
    if temp_c is None or not _LOWEST_C <= temp_c <= _HIGHEST_C:  # NaN, too
        return None
    return temp_c


def readings_by_zone(states: Iterable[DeviceState]) -> dict[Zone, list[float]]:
    """All readings of every zone, in the order of the states."""
    readings: dict[Zone, list[float]] = {}
    for state in states:
        for t in state.thermal:
            if t.temp_c is not None and math.isfinite(t.temp_c):
                readings.setdefault((t.zone, t.type), []).append(t.temp_c)
    return readings


def hottest_cpu(
    state: DeviceState, seen: Sequence[DeviceState] = (), looks: Sequence[DeviceState] = ()
) -> Hottest:
    """The hottest zone of those that follow the CPU best, in `state`.

    A zone is turned down when it reads the same in all states of a campaign so far (`seen`, minutes
    apart) while another zone moves or where only a trip point stands; and when it stands there in
    all of many `looks`, seconds apart. Among looks a cool zone may stand still beside others that
    move: that alone says nothing.
    """
    before, meanwhile = readings_by_zone(seen), readings_by_zone(looks)
    moving = {z for z, values in before.items() if max(values) > min(values)}
    ranked: dict[int, list[tuple[float, str]]] = {}
    rejected: list[str] = []
    for t in state.thermal:
        rank, temp_c = cpu_rank(t.type), plausible(t.temp_c)
        if rank is None or temp_c is None:
            continue
        old, new = before.get((t.zone, t.type), []), meanwhile.get((t.zone, t.type), [])
        constant = all(value == temp_c for value in (*old, *new))
        long_ago = len(old) >= STATES_TO_CALL_CONSTANT and (bool(moving) or temp_c >= TRIP_POINT_C)
        lately = len(new) >= LOOKS_TO_CALL_CONSTANT and temp_c >= TRIP_POINT_C
        if constant and (long_ago or lately):
            times = len(old) + len(new) + 1
            rejected.append(f"{t.zone} ({t.type}) reads {temp_c:g} °C all {times} times")
            continue
        ranked.setdefault(rank, []).append((temp_c, zone_name(t)))
    if not ranked:
        return Hottest(rejected=tuple(rejected))
    temp_c, zone = max(ranked[min(ranked)])
    return Hottest(temp_c, zone, tuple(rejected))


def zone_name(zone: ThermalState) -> str:
    """As records and the terminal call it."""
    return zone.zone if zone.type is None else f"{zone.zone}.{zone.type}"
