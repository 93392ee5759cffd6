"""How much a device varies between cells of one and the same configuration. Pure.

From the records of a short A/A: figures only, and None wherever too few cells say nothing. The
product's own rules are asked which cells it would discard, and which sessions it could read.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, median

import numpy as np

from harness.analysis.contamination import ContaminationSettings, examine
from harness.analysis.device_noise import DeviceNoise
from harness.analysis.device_state import CpuSensor, cpu_sensor, states_in_order
from harness.analysis.four_cell import FourCellSettings, four_cell_verdict
from harness.analysis.series import Series
from harness.analysis.usable import no_speed, speed
from harness.planned import Role
from harness.records import CellRecord
from harness.schema import VerdictConfig

_NORMAL = NormalDist()
# of the interval of the spread, both sides together
CONFIDENCE = 0.90
# differences of neighbours: fewer say nothing
_LEAST_CELLS = 4
_ROLES: tuple[tuple[str, Role], ...] = (
    ("baseline", "baseline"),
    ("first", "candidate"),
    ("second", "candidate"),
    ("sentinel", "sentinel"),
)
# beyond all that a cell could show: a threshold that switches its rule off
_NEVER = 1e9
RULES = {
    "step_pct": "a step in the trace",
    "cap_move_pct": "a frequency cap that moved",
    "probe_move_pct": "the probe after the cell off the one before it",
    "slow_cell_pct": "slower than its neighbours at equal work",
    "majflt_time_pct": "time taken by page faults",
    "cpu_throttled_pct": "held back by a CPU quota",
    "cpu_wait_pct": "waited for a core",
    "neighbour_cpu_pct": "other programs used cores",
    "steal_cpu_pct": "the hypervisor took cores",
    "cpu_starved_pct": "got less CPU per ms of computing",
    "entry_cap_pct": "throttled at its beginning",
}


@dataclass(frozen=True)
class Spread:
    """Standard deviation of ln tok/s between cells, drift removed; `interval`: CONFIDENCE."""

    log_sd: float
    interval: tuple[float, float]
    cells: int


@dataclass(frozen=True)
class ProbeSpread:
    """One probe at the beginning of cells that follow each other: how far apart, in percent.

    `readable`: share of the neighbours within the tolerance of a four-cell session.
    """

    tolerance_pct: float
    median_gap_pct: float
    largest_gap_pct: float
    readable: float
    neighbours: int


@dataclass(frozen=True)
class FourCell:
    """Four neighbouring cells at a time, judged as sessions of four cells (they overlap).

    `accused`: candidates held for faster or slower, which nothing here is. `bar_pct`: median of the
    least effect that a session could show. `reasons`: why candidates were unreadable, by how many.
    """

    sessions: int
    candidates: int
    readable: int
    accused: int
    bar_pct: float | None
    reasons: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Noise:
    """`contaminated`: cells, and `by_rule` how many each rule alone would discard; both of `cells`.

    `failed`: cells without a speed, with what became of them. `blind`: rules (settings of
    `verdict.contaminated`) for which nothing was recorded. `sensor`: as a verdict would choose it.
    """

    cells: int
    failed: tuple[str, ...]
    tokens: int | None
    decode_s: float | None
    tok_s: float | None
    spread: Spread | None
    drift_pct: float | None
    token_log_sd: float | None
    compute_probe: ProbeSpread | None
    read_probe: ProbeSpread | None
    reads_direct: bool | None
    four_cell: FourCell | None
    contaminated: tuple[str, ...]
    by_rule: dict[str, int] = field(default_factory=dict)
    blind: tuple[str, ...] = ()
    sensor: CpuSensor = field(default_factory=lambda: CpuSensor(None))


def noise_of(
    records: Sequence[CellRecord],
    series: Mapping[int, Series],
    settings: VerdictConfig,
    device: DeviceNoise | None,
) -> Noise:
    """`device`: the same cells as the simulator sees them; None where they are too few for that."""
    cells = sorted((r for r in records if not no_speed(r)), key=lambda r: r.index)
    own = ContaminationSettings(**vars(settings.contaminated))
    examined = examine(records, series, own)
    speeds = [speed(r) for r in cells]
    tokens = [n for r in cells if (n := r.counters.tokens) is not None]
    probes = [p for r in cells if (p := r.probe.before) is not None]
    return Noise(
        cells=len(cells),
        failed=tuple(f"{r.cell}: {r.status_detail or r.status}" for r in records if no_speed(r)),
        tokens=max(tokens, default=None),
        decode_s=median(n / s for n, s in zip(tokens, speeds, strict=True))
        if tokens and len(tokens) == len(speeds)
        else None,
        tok_s=median(speeds) if speeds else None,
        spread=spread_of(speeds, device),
        drift_pct=_drift_pct(speeds, device),
        token_log_sd=None if device is None else device.within_cell_log_sd,
        compute_probe=_probe_spread(cells, "compute_ms", settings.probe_tolerance_pct),
        read_probe=_probe_spread(cells, "read_ms", settings.read_probe_tolerance_pct),
        reads_direct=probes[0].read_direct if probes else None,
        four_cell=_four_cell(cells, series, settings, own),
        contaminated=tuple(
            f"{v.cell}: {'; '.join(v.reasons)}" for v in examined if v.status == "contaminated"
        ),
        by_rule=_by_rule(records, series, own),
        blind=_blind(cells, series),
        sensor=cpu_sensor([state for _, state in states_in_order(cells)]),
    )


# --- speed ---------------------------------------------------------------------------------------


def spread_of(speeds: Sequence[float], device: DeviceNoise | None) -> Spread | None:
    """From the drift's own course where there are cells enough, else from neighbours alone.

    Neighbours share all but a little of the drift. The degrees of freedom of their differences are
    those of a mean square with the same variance.
    """
    n = len(speeds)
    if device is not None:
        n = len(device.records)
        return _with_interval(device.between_cells_log_sd, n - 1, n)
    if n < _LEAST_CELLS:
        return None
    steps = np.diff(np.log(speeds))
    freedom = 2 * (n - 1) ** 2 / (3 * n - 4)
    return _with_interval(float(np.sqrt(np.mean(steps**2) / 2)), freedom, n)


def _with_interval(log_sd: float, freedom: float, cells: int) -> Spread:
    tail = (1 - CONFIDENCE) / 2
    low, high = (
        log_sd * math.sqrt(freedom / chi_square(share, freedom)) for share in (1 - tail, tail)
    )
    return Spread(log_sd, (low, high), cells)


def chi_square(share: float, freedom: float) -> float:
    """The quantile, by Wilson and Hilferty: within 7 % at three degrees of freedom, 1 % at ten."""
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + _NORMAL.inv_cdf(share) * math.sqrt(part)) ** 3)


def _drift_pct(speeds: Sequence[float], device: DeviceNoise | None) -> float | None:
    """Change of tok/s over all cells; of few cells their last third against their first."""
    if device is not None:
        return math.expm1(-device.drift_log) * 100
    third = len(speeds) // 3
    if not third:
        return None
    return (median(speeds[-third:]) / median(speeds[:third]) - 1) * 100


# --- probes --------------------------------------------------------------------------------------


def _probe_spread(
    cells: Sequence[CellRecord], name: str, tolerance_pct: float
) -> ProbeSpread | None:
    values = [getattr(r.probe.before, name, None) for r in cells]
    gaps = [
        math.expm1(abs(math.log(b / a))) * 100
        for a, b in itertools.pairwise(values)
        if a is not None and b is not None and a > 0 and b > 0
    ]
    if not gaps:
        return None
    return ProbeSpread(
        tolerance_pct=tolerance_pct,
        median_gap_pct=median(gaps),
        largest_gap_pct=max(gaps),
        readable=sum(gap <= tolerance_pct for gap in gaps) / len(gaps),
        neighbours=len(gaps),
    )


# --- sessions of four cells ----------------------------------------------------------------------


def _four_cell(
    cells: Sequence[CellRecord],
    series: Mapping[int, Series],
    config: VerdictConfig,
    contamination: ContaminationSettings,
) -> FourCell | None:
    settings = FourCellSettings(
        sentinel_stable_pct=config.stable_pct,
        cpu_temp_tolerance_c=config.temp_tolerance_c,
        probe_tolerance_pct=config.probe_tolerance_pct,
        read_probe_tolerance_pct=config.read_probe_tolerance_pct,
    )
    sessions = len(cells) - len(_ROLES) + 1
    if sessions < 1:
        return None
    readable = accused = 0
    bars: list[float] = []
    reasons: dict[str, int] = {}
    for first in range(sessions):
        own, traces = _as_session(cells[first : first + len(_ROLES)], series)
        examined = examine(own, traces, contamination)
        verdict = four_cell_verdict("doctor", own, settings, None, examined)
        drift_pct = verdict.drift.sentinel_change_pct
        if drift_pct is not None:
            bars.append(max(settings.provisional_min_log, abs(math.log1p(drift_pct / 100))))
        for v in verdict.verdicts:
            readable += v.effect_pct is not None
            accused += v.outcome in ("provisional_win", "provisional_loss")
            if v.effect_pct is None:
                why = _why(v.reasons)
                reasons[why] = reasons.get(why, 0) + 1
    return FourCell(
        sessions=sessions,
        candidates=2 * sessions,
        readable=readable,
        accused=accused,
        bar_pct=math.expm1(median(bars)) * 100 if bars else None,
        reasons=tuple(sorted(reasons.items(), key=lambda item: -item[1])),
    )


def _as_session(
    cells: Sequence[CellRecord], series: Mapping[int, Series]
) -> tuple[list[CellRecord], dict[int, Series]]:
    own, traces = [], {}
    for place, (record, (name, role)) in enumerate(zip(cells, _ROLES, strict=True)):
        arm = "baseline" if role == "sentinel" else name
        own.append(dataclasses.replace(record, cell=name, arm=arm, role=role, index=place))
        if record.index in series:
            traces[place] = series[record.index]
    return own, traces


# what makes a candidate unreadable, in the order in which it is told of
_WHY = (
    ("too short to tell", "its cells are too short"),
    ("compute probe", "the compute probes are too far apart"),
    ("direct reads probe", "the probes of direct reads are too far apart"),
    ("no probe ran", "nothing shows the device's state"),
    ("°C apart", "temperatures are too far apart"),
    ("the cap of", "frequency caps differ"),
    ("is contaminated", "a cell is contaminated"),
)


def _why(reasons: Sequence[str]) -> str:
    """In a few words, from what a verdict says at length."""
    said = " ".join(reasons)
    return next((words for part, words in _WHY if part in said), "other reasons")


# --- contamination -------------------------------------------------------------------------------


def _by_rule(
    records: Sequence[CellRecord], series: Mapping[int, Series], own: ContaminationSettings
) -> dict[str, int]:
    """How many cells each rule would discard by itself; those that discard none left out."""
    off = dict.fromkeys(RULES, _NEVER) | {"mem_available_floor_mib": 0.0}
    found = {}
    for rule in RULES:
        alone = dataclasses.replace(own, **(off | {rule: getattr(own, rule)}))
        count = sum(v.status == "contaminated" for v in examine(records, series, alone))
        if count:
            found[rule] = count
    return found


def _blind(cells: Sequence[CellRecord], series: Mapping[int, Series]) -> tuple[str, ...]:
    """Rules for which no cell recorded anything."""
    if not cells:
        return ()
    traces = [s for r in cells if (s := series.get(r.index)) is not None]
    seen = {
        "step_pct": bool(traces),
        "cap_move_pct": any(c.scaling_max_khz for r in cells if r.entry for c in r.entry.cpufreq),
        "probe_move_pct": any(r.probe.before and r.probe.after for r in cells),
        "majflt_time_pct": any(s.majflt is not None for s in traces),
        "cpu_throttled_pct": any(r.metrics.cpu_throttled_share is not None for r in cells),
        "cpu_wait_pct": any(r.metrics.cpu_wait_share is not None for r in cells),
        "neighbour_cpu_pct": any(r.metrics.neighbour_cpu_share is not None for r in cells),
        "steal_cpu_pct": any(r.metrics.steal_cpu_share is not None for r in cells),
    }
    return tuple(rule for rule, there in seen.items() if not there)
