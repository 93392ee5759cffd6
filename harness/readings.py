"""What a device showed before, while and after a cell ran, as data. Touches nothing.

Round-trips through JSON (`jsonable`). `None` means *not readable there*, never zero. Units are in
the names, as in `records`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class CpufreqState:
    policy: str
    cpus: str | None = None
    scaling_max_khz: int | None = None
    scaling_cur_khz: int | None = None
    cpuinfo_max_khz: int | None = None
    governor: str | None = None


@dataclass(frozen=True)
class ThermalState:
    zone: str
    type: str | None = None
    temp_c: float | None = None


@dataclass(frozen=True)
class BatteryState:
    temp_c: float | None = None
    capacity_pct: float | None = None
    status: str | None = None
    current_ua: int | None = None


@dataclass(frozen=True)
class PsiState:
    cpu_some_avg10: float | None = None
    memory_some_avg10: float | None = None
    io_some_avg10: float | None = None


@dataclass(frozen=True)
class DeviceState:
    """What the device looked like at one moment (launcher `state`)."""

    unix_s: float | None = None
    mem_total_bytes: int | None = None
    mem_available_bytes: int | None = None
    swap_free_bytes: int | None = None
    load_1m: float | None = None
    cpu_busy_share: float | None = None
    cpufreq: tuple[CpufreqState, ...] = ()
    thermal: tuple[ThermalState, ...] = ()
    battery: BatteryState | None = None
    psi: PsiState | None = None


@dataclass(frozen=True)
class ProbeResult:
    """The calibrated probe: fixed compute and fixed direct reads.

    `compute_ms` and `read_ms` are medians of wall time and so feel a busy neighbour as the engine
    does; `compute_cpu_ms` is the median of CPU time and feels the clock of the core alone.
    """

    compute_ms: float | None = None
    compute_cpu_ms: float | None = None
    compute_min_ms: float | None = None
    compute_reps: int | None = None
    read_ms: float | None = None
    read_min_ms: float | None = None
    read_reps: int | None = None
    read_bytes: int | None = None
    read_direct: bool | None = None
    wall_s: float | None = None


@dataclass(frozen=True)
class Probes:
    before: ProbeResult | None = None
    after: ProbeResult | None = None


GateWhat = Literal["cpu_temp_c", "mem_available_bytes", "cap_pct"]


@dataclass(frozen=True)
class GateOutcome:
    """One condition that was waited for before a cell, and how that ended.

    `limit`, `value` (the last one read; None: never) in the unit that `what` ends in; `sensor`: the
    zone or cluster that `value` is of. `waited_s`: until it held for good, 0 at once; until the
    wait was over where it did not. `unreadable`: the device does not show it, or (`detail`) only
    through sensors that are no thermometers; it was not waited for.
    """

    what: GateWhat
    outcome: Literal["met", "timeout", "unreadable"]
    limit: float
    value: float | None = None
    sensor: str | None = None
    waited_s: float = 0.0
    detail: str | None = None


@dataclass(frozen=True)
class Peaks:
    """The worst that was seen while the cell ran, between its entry and its exit."""

    cpu_temp_max_c: float | None = None
    battery_temp_max_c: float | None = None
    mem_available_min_bytes: int | None = None


@dataclass(frozen=True)
class Excursion:
    """A sensor beyond what was allowed while the engine ran, at its first sample beyond.

    `value`, `limit` and `start` (at the engine's start) are readings of the sensor: degrees
    Celsius, or kHz of a cluster's frequency cap, which then lies below its limit.
    """

    t_ms: float  # from the start of the engine
    what: Literal["cpu_temp_max", "cpu_temp_rise", "cap_drop"]
    sensor: str
    value: float
    limit: float
    start: float
