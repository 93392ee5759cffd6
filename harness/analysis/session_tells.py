"""What a cell shows against the other cells of its session. Pure: one small rule for each tell.

Rules across cells answer with a `Finding` for each cell, by its place in the order of indices.
Arms are only ever told apart, never told which is which.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.device_state import caps_khz, cpu_sensor
from harness.analysis.series import Array, Series
from harness.analysis.steps import Step
from harness.analysis.tells import NOTHING, Finding, followed, percent
from harness.readings import DeviceState
from harness.records import CellRecord

Records = Sequence[CellRecord]
_SD_OF_MAD = 1.4826
_TO_KNOW_A_SPREAD = 6


def by_arm(records: Records) -> list[list[int]]:
    """Places of the cells of each arm."""
    arms: dict[str, list[int]] = {}
    for i, r in enumerate(records):
        arms.setdefault(r.arm, []).append(i)
    return list(arms.values())


def usual_spread(deviations: Sequence[float]) -> float:
    """Three robust standard deviations: what a session varies by singles out none of its cells.

    0 where there are too few to know.
    """
    if len(deviations) < _TO_KNOW_A_SPREAD:
        return 0.0
    return 3 * _SD_OF_MAD * float(np.median(np.abs(deviations)))


# --- the same work in another time ---------------------------------------------------------------


def typical_ln_ms(series: Series | None, warmup_tokens: int) -> float | None:
    """ln of the median wall time after the warm-up."""
    if series is None or len(series) <= warmup_tokens:
        return None
    return float(np.log(np.median(series.wall_ms[warmup_tokens:])))


def slower_than_its_twins(
    records: Records, typical: Sequence[float | None], *, slow_pct: float, one_side_counts: bool
) -> list[Finding]:
    """The typical token of a cell is slower than its arm's were both before and after it.

    Same work, other time: the device. By more than the cells' probes are apart: what these show is
    known of the cell, and adjusted for. Both sides, the median of up to two cells each, because a
    device that heats up makes every cell slower than those before it; that is drift, and coins deal
    with it. With neighbours on one side only it is a note; with `one_side_counts` a reason, for
    sessions of few cells where no coins do.
    """
    found = [NOTHING] * len(records)
    compared = [t for places in by_arm(records) for t in _twins(records, typical, places)]
    limit = max(math.log1p(slow_pct / 100), usual_spread([t.off for t in compared]))
    for t in compared:
        counts = t.both_sides or one_side_counts
        if t.slower <= limit:
            found[t.place] = Finding(could_tell=counts)
            continue
        words = (
            f"its typical token is {math.expm1(t.slower):.0%} slower than in the cells of the same "
            f"work {'before and after' if t.both_sides else 'next to'} it"
        )
        reasons, notes = ((words,), ()) if counts else ((), (words,))
        found[t.place] = Finding(reasons, notes, could_tell=counts)
    return found


@dataclass(frozen=True)
class _Twin:
    """ln times of one cell against its arm's before and after: against the nearer, and all."""

    place: int
    slower: float
    off: float
    both_sides: bool


def _twins(records: Records, typical: Sequence[float | None], places: list[int]) -> list[_Twin]:
    known = [(i, ln_ms) for i in places if (ln_ms := typical[i]) is not None]
    walls = np.array([ln_ms for _, ln_ms in known])
    probes = np.array([_probe_level(records[i]) for i, _ in known])
    twins = []
    for k, (i, _) in enumerate(known):
        sides = [s for s in (slice(max(0, k - 2), k), slice(k + 1, k + 3)) if len(walls[s])]
        if sides:
            twins.append(
                _Twin(
                    place=i,
                    slower=min(_slower(walls, probes, k, side) for side in sides),
                    off=float(walls[k] - np.median(np.concatenate([walls[s] for s in sides]))),
                    both_sides=len(sides) == 2,
                )
            )
    return twins


def _slower(walls: Array, probes: Array, at: int, side: slice) -> float:
    """ln of the wall time over that of the cells of `side`, less what the probes show of it."""
    slower = float(walls[at] - np.median(walls[side]))
    shown = float(probes[at] - np.median(probes[side]))
    return slower if math.isnan(shown) else min(slower, slower - shown)


def _probe_level(record: CellRecord) -> float:
    """ln of the mean of both compute probes; NaN unless both were measured."""
    probes = (record.probe.before, record.probe.after)
    measured = [p.compute_ms for p in probes if p is not None and p.compute_ms is not None]
    if len(measured) < 2 or not all(0 < ms < math.inf for ms in measured):
        return math.nan
    return math.log(sum(measured) / 2)


def starved(records: Records, series: Mapping[int, Series], *, share_pct: float) -> list[Finding]:
    """CPU time per millisecond of computing below the arm's other cells: threads that did not run.

    Needs three cells of the arm; in one that is held up by faults it says what these do.
    """
    ratios: list[float | None] = [_cpu_per_compute(series.get(r.index)) for r in records]
    found = [NOTHING] * len(records)
    for places in by_arm(records):
        known = [i for i in places if ratios[i] is not None]
        if len(known) < 3:
            continue
        typical = float(np.median([ratios[i] or 0.0 for i in known]))
        usual = usual_spread([math.log((ratios[i] or typical) / typical) for i in known])
        least = min(1 - share_pct / 100, math.exp(-usual)) * typical
        for i in known:
            ratio = ratios[i] or 0.0
            if ratio >= least:
                found[i] = Finding(could_tell=True)
                continue
            found[i] = Finding(
                (
                    f"its threads got {ratio:.2f} ms of CPU for each ms of computing, "
                    f"{typical:.2f} in the cells of its arm",
                ),
                could_tell=True,
            )
    return found


def _cpu_per_compute(series: Series | None) -> float | None:
    if series is None or series.cpu_ms is None or series.compute_ms is None:
        return None
    cpu, compute = float(np.nansum(series.cpu_ms)), float(np.nansum(series.compute_ms))
    return cpu / compute if compute > 0 and cpu > 0 else None


# --- the processor's other users -----------------------------------------------------------------

_SHARES: tuple[tuple[str, Callable[[CellRecord], float | None]], ...] = (
    ("its threads waited for a core", lambda r: r.metrics.cpu_wait_share),
    ("other processes used a core", lambda r: r.metrics.neighbour_cpu_share),
    ("the hypervisor took a core", lambda r: r.metrics.steal_cpu_share),
)


def shares_out_of_line(records: Records, limits_pct: Sequence[float]) -> list[Finding]:
    """Shares of the cell's time, more above the session's median than its limit, and than usual.

    Above the median, since a machine that is as busy in every cell treats them alike. `limits_pct`:
    for waiting, for neighbours, for steal.
    """
    reasons: list[list[str]] = [[] for _ in records]
    told = [False] * len(records)
    for (words, of), limit in zip(_SHARES, limits_pct, strict=True):
        values = [of(r) for r in records]
        measured = [v for v in values if v is not None]
        if not measured:
            continue
        typical = float(np.median(measured))
        above = max(limit / 100, usual_spread([v - typical for v in measured]))
        for i, value in enumerate(values):
            if value is None:
                continue
            told[i] = True
            if value - typical > above:
                reasons[i].append(
                    f"{words} for {value:.0%} of its time, {typical:.0%} in the typical cell"
                )
    return [Finding(tuple(r), could_tell=t) for r, t in zip(reasons, told, strict=True)]


# --- the probe ------------------------------------------------------------------------------------


def probes_moved(
    records: Records,
    steps: Sequence[Step | None],
    follows: Sequence[tuple[float, float]],
    *,
    probe_pct: float,
) -> list[Finding]:
    """The compute probe after a cell is off the one before it.

    Also where the cell's tokens did not move with it: then its two probes are of two states of the
    device, and neither they nor their mean says in which of them it ran. But not by less than three
    standard deviations (robust) of what they are apart in this session: where a busy machine moves
    the probe in every cell, it is no measure of one; that is a note. `follows`: how far (%) and how
    surely (z) a trace has to move to have followed, by cell.

    Direct reads are left out: at rest they vary by far more (docs/contamination.md).
    """
    found = [NOTHING] * len(records)
    moves = [_probe_move(r) for r in records]
    usual = usual_spread([m for m in moves if m is not None])
    for i, (step, move) in enumerate(zip(steps, moves, strict=True)):
        if move is None:
            continue
        if abs(move) <= math.log1p(probe_pct / 100):
            found[i] = Finding(could_tell=True)
            continue
        longer = "longer" if move > 0 else "less"
        words = f"the compute probe took {abs(math.expm1(move)):.0%} {longer} after it than before"
        if step is not None and followed(step, move > 0, *follows[i]):
            words = f"{words}, and its tokens became {percent(step)}"
        elif abs(move) <= usual:
            note = f"{words}, no more than it varies in this session"
            found[i] = Finding(notes=(note,))
            continue
        found[i] = Finding((words,), could_tell=True)
    return found


def _probe_move(record: CellRecord) -> float | None:
    """ln of the compute probe after the cell over the one before it; None where not measured."""
    before, after = (
        None if probe is None else probe.compute_ms
        for probe in (record.probe.before, record.probe.after)
    )
    if before is None or after is None or not (0 < before < math.inf and 0 < after < math.inf):
        return None
    return math.log(after / before)


# --- where the device stood ----------------------------------------------------------------------


def throttled_at_entry(records: Records, *, cap_pct: float) -> list[Finding]:
    """A cap at entry far below those of the cells before and after it: the device was throttled.

    Of those before and after which there are. A cap that only ever falls is drift.
    """
    found = [NOTHING] * len(records)
    shown = [i for i, r in enumerate(records) if caps_khz(r.entry)]
    for k, i in enumerate(shown):
        near = [shown[j] for j in (k - 1, k + 1) if 0 <= j < len(shown)]
        own = caps_khz(records[i].entry)
        reasons = []
        for policy, cap in sorted(own.items()):
            others = [c for j in near if (c := caps_khz(records[j].entry).get(policy))]
            if others and cap < (1 - cap_pct / 100) * min(others):
                cells = " and ".join(records[j].cell for j in near)
                reasons.append(
                    f"the cap of {policy} at entry is {cap / 1e6:.2f} GHz, "
                    f"{min(others) / 1e6:.2f} GHz for {cells}"
                )
        found[i] = Finding(tuple(reasons))
    return found


def temperature_notes(records: Records, *, above_c: float) -> list[Finding]:
    """CPU temperatures far above the session's median, and sensors that were rejected.

    Notes: what heat does to speed shows in caps, probes and traces, and a cell that started hot
    need not be slow.
    """
    sensor = cpu_sensor([s for r in records for s in (r.entry, r.exit) if s is not None])
    readings = (
        ("at entry", [sensor.read(r.entry) for r in records]),
        ("at its hottest", [r.peaks.cpu_temp_max_c for r in records]),
    )
    notes: list[list[str]] = [[] for _ in records]
    for moment, temps in readings:
        known = [t for t in temps if t is not None]
        typical = float(np.median(known)) if known else math.nan
        for of_cell, t in zip(notes, temps, strict=True):
            if t is not None and t - typical > above_c:
                of_cell.append(f"CPU {t:.1f} °C {moment}, {typical:.1f} °C in the typical cell")
    with_sensor = next((i for i, r in enumerate(records) if _has_sensor(r.entry)), None)
    if with_sensor is not None:
        notes[with_sensor] += [f"sensor rejected: {words}" for words in sensor.rejected]
    return [Finding(notes=tuple(of_cell)) for of_cell in notes]


def _has_sensor(state: DeviceState | None) -> bool:
    return state is not None and bool(state.thermal)


def arm_medians(records: Records, values: Sequence[float | None], least: int) -> list[float | None]:
    """For each cell the median over its arm; None where fewer than `least` of it have a value."""
    medians: list[float | None] = [None] * len(records)
    for places in by_arm(records):
        known: list[float] = [v for i in places if (v := values[i]) is not None]
        if len(known) >= least:
            for i in places:
                medians[i] = float(np.median(known))
    return medians
