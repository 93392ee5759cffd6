"""Whether the device was in the same state at the entry of two cells. Pure.

Caps of every cluster and the CPU's temperature where the device shows them, the calibrated probe
where it does not. A battery's temperature is never used: it lags the CPU by minutes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.cpu_zones import (
    STATES_TO_CALL_CONSTANT,
    TRIP_POINT_C,
    cpu_rank,
    readings_by_zone,
)
from harness.readings import DeviceState, Excursion, ProbeResult
from harness.records import CellRecord

# the two probes, as they are called in reasons
COMPUTE, READS = "compute", "direct reads"


@dataclass(frozen=True)
class CpuSensor:
    """The zone chosen, or None with every CPU zone that was turned down and why."""

    zone: str | None
    type: str | None = None
    rejected: tuple[str, ...] = ()

    def read(self, state: DeviceState | None) -> float | None:
        """Degrees Celsius in `state`; None where the zone was not read."""
        if state is None or self.zone is None:
            return None
        for t in state.thermal:
            if (t.zone, t.type) == (self.zone, self.type):
                return _finite(t.temp_c)
        return None


@dataclass(frozen=True)
class StateMatch:
    """Same device state or not. `distance` orders matches: 0 identical, 1 at the tolerance.

    `log_probe_gap`: |ln| of the entry probes' ratio, the larger of compute and reads; None when not
    probed.
    """

    same: bool
    problems: tuple[str, ...]
    agreed: tuple[str, ...]
    distance: float
    log_probe_gap: float | None


def states_in_order(records: Sequence[CellRecord]) -> list[tuple[str, DeviceState]]:
    """Entry and exit states of `records`, in their order, each with its place in words."""
    path = []
    for r in records:
        for place, state in (("entry", r.entry), ("exit", r.exit)):
            if state is not None:
                path.append((f"the {place} of {r.cell}", state))
    return path


def cpu_sensor(states: Sequence[DeviceState]) -> CpuSensor:
    """The CPU zone to trust over these states: by type, then read most often, then moving most.

    Rejected: a zone with one and the same reading in all states (three at least) while another zone
    moves, or while it stands where only a trip point does.
    """
    readings = readings_by_zone(states)
    moving = {key for key, values in readings.items() if max(values) > min(values)}
    rejected: list[str] = []
    choices: list[tuple[int, int, float, str, str | None]] = []
    for (zone, kind), values in readings.items():
        rank = cpu_rank(kind)
        if rank is None:
            continue
        constant = len(values) >= STATES_TO_CALL_CONSTANT and (zone, kind) not in moving
        if constant and (moving or values[0] >= TRIP_POINT_C):
            rejected.append(f"{zone} ({kind}) reads {values[0]:g} °C in all {len(values)} states")
            continue
        choices.append((rank, -len(values), min(values) - max(values), zone, kind))
    if not choices:
        return CpuSensor(None, rejected=tuple(rejected))
    best = min(choices, key=lambda c: (*c[:4], c[4] or ""))
    return CpuSensor(best[3], best[4], tuple(rejected))


def caps_khz(state: DeviceState | None) -> dict[str, int]:
    """Frequency cap of each cluster that shows one."""
    if state is None:
        return {}
    return {c.policy: c.scaling_max_khz for c in state.cpufreq if c.scaling_max_khz}


def cap_falls(path: Sequence[tuple[str, DeviceState]]) -> tuple[str, ...]:
    """Every fall of a cluster's cap between consecutive states, in words."""
    falls: list[str] = []
    last: dict[str, tuple[str, int]] = {}
    for place, state in path:
        for policy, cap in caps_khz(state).items():
            if policy in last and cap < last[policy][1]:
                before_place, before = last[policy]
                falls.append(
                    f"the cap of {policy} fell from {_ghz(before)} at {before_place} "
                    f"to {_ghz(cap)} at {place}"
                )
            last[policy] = (place, cap)
    return tuple(falls)


def cap_moves_inside(record: CellRecord, tolerance_pct: float) -> tuple[str, ...]:
    """Clusters whose cap at the exit of the cell is off its entry by more than the tolerance."""
    after = caps_khz(record.exit)
    return tuple(
        f"the cap of {policy} moved inside {record.cell}, {_ghz(cap)} to {_ghz(after[policy])}"
        for policy, cap in caps_khz(record.entry).items()
        if policy in after and abs(after[policy] - cap) > tolerance_pct / 100 * cap
    )


def cap_dips(record: CellRecord) -> tuple[Excursion, ...]:
    """Falls of a cap inside the cell that its exit state does not show: the cap came back."""
    after = caps_khz(record.exit)
    return tuple(
        e
        for e in record.excursions or ()
        if e.what == "cap_drop" and after.get(e.sensor, 0) >= e.limit
    )


def dip_in_words(record: CellRecord, dip: Excursion) -> str:
    """The cluster, the cell, from where to where, and when."""
    return (
        f"the cap of {dip.sensor} fell inside {record.cell}, {_ghz(round(dip.start))} to "
        f"{_ghz(round(dip.value))} after {dip.t_ms / 1000:.1f} s, and came back"
    )


def match_entry(
    a: CellRecord,
    b: CellRecord,
    sensor: CpuSensor,
    *,
    temp_tolerance_c: float,
    probe_tolerance_pct: float,
    read_probe_tolerance_pct: float,
) -> StateMatch:
    """Compare entry states: equal caps, CPU temperatures within the tolerance (degrees Celsius).

    Where caps or temperature are shown by neither cell, the entry probes must agree within
    `probe_tolerance_pct` percent instead (direct reads: `read_probe_tolerance_pct`). What only one
    cell has cannot be compared: a problem.
    """
    problems: list[str] = []
    agreed: list[str] = []
    distance = 0.0

    caps_a, caps_b = caps_khz(a.entry), caps_khz(b.entry)
    caps_shown = bool(caps_a or caps_b)
    if caps_shown:
        problems += _cap_differences(a, b, caps_a, caps_b)
        if not problems:
            agreed.append("equal caps on every cluster")

    temp_a, temp_b = sensor.read(a.entry), sensor.read(b.entry)
    temp_shown = temp_a is not None or temp_b is not None
    if temp_a is not None and temp_b is not None:
        gap = abs(temp_a - temp_b)
        words = f"CPU {temp_a:.1f} °C and {temp_b:.1f} °C at entry ({sensor.zone}, {sensor.type})"
        distance = gap / temp_tolerance_c
        if gap > temp_tolerance_c + 1e-9:
            problems.append(f"{words}: {gap:.1f} °C apart, {temp_tolerance_c:g} °C allowed")
        else:
            agreed.append(words)
    elif temp_shown:
        have = a if temp_a is not None else b
        problems.append(f"the CPU temperature at entry is recorded for {have.cell} only")

    gap_log = _probe_gap(a.probe.before, b.probe.before)
    if not (caps_shown and temp_shown):
        missing = " and ".join(
            n for n, s in (("frequency caps", caps_shown), ("CPU temperature", temp_shown)) if not s
        )
        probe_problems, probe_agreed = _probe_words(
            a, b, {COMPUTE: probe_tolerance_pct, READS: read_probe_tolerance_pct}
        )
        if probe_problems:
            problems.append(f"no {missing} to compare, and {'; '.join(probe_problems)}")
        agreed += probe_agreed
        if gap_log is not None:
            distance = max(distance, math.expm1(gap_log) * 100 / probe_tolerance_pct)
    return StateMatch(not problems, tuple(problems), tuple(agreed), distance, gap_log)


def _cap_differences(
    a: CellRecord, b: CellRecord, caps_a: dict[str, int], caps_b: dict[str, int]
) -> list[str]:
    if not caps_a or not caps_b:
        have = a if caps_a else b
        return [f"frequency caps at entry are recorded for {have.cell} only"]
    problems = []
    for policy in sorted(caps_a.keys() | caps_b.keys()):
        x, y = caps_a.get(policy), caps_b.get(policy)
        if x is None or y is None:
            have = a if x is not None else b
            problems.append(f"the cap of {policy} at entry is recorded for {have.cell} only")
        elif x != y:
            problems.append(
                f"the cap of {policy} at entry is {_ghz(x)} for {a.cell}, {_ghz(y)} for {b.cell}"
            )
    return problems


def _probe_pairs(
    a: ProbeResult | None, b: ProbeResult | None
) -> list[tuple[str, float | None, float | None]]:
    pairs = []
    for name, field in ((COMPUTE, "compute_ms"), (READS, "read_ms")):
        x = _positive(getattr(a, field)) if a is not None else None
        y = _positive(getattr(b, field)) if b is not None else None
        if x is not None or y is not None:
            pairs.append((name, x, y))
    return pairs


def _probe_gap(a: ProbeResult | None, b: ProbeResult | None) -> float | None:
    gaps = [abs(math.log(x / y)) for _, x, y in _probe_pairs(a, b) if x and y]
    return max(gaps, default=None)


def _probe_words(
    a: CellRecord, b: CellRecord, tolerances_pct: Mapping[str, float]
) -> tuple[list[str], list[str]]:
    """Problems and agreements of the entry probes, in words and numbers."""
    pairs = _probe_pairs(a.probe.before, b.probe.before)
    if not any(name == COMPUTE for name, _, _ in pairs):
        return ["no probe ran before the cells"], []
    problems, agreed = [], []
    for name, x, y in pairs:
        if x is None or y is None:
            have = a if x is not None else b
            problems.append(f"the {name} probe ran before {have.cell} only")
            continue
        gap_pct = math.expm1(abs(math.log(x / y))) * 100
        tolerance_pct = tolerances_pct[name]
        words = f"{name} probe {x:.4g} ms and {y:.4g} ms at entry"
        if gap_pct > tolerance_pct + 1e-9:
            problems.append(f"the {words} are {gap_pct:.1f} % apart, {tolerance_pct:g} % allowed")
        else:
            agreed.append(words)
    return problems, agreed


def _finite(x: float | None) -> float | None:
    return x if x is not None and math.isfinite(x) else None


def _positive(x: float | None) -> float | None:
    return x if x is not None and math.isfinite(x) and x > 0 else None


def _ghz(khz: int) -> str:
    return f"{khz / 1e6:.2f} GHz"
