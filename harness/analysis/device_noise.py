"""A device as its own A/A campaign showed it, and campaigns simulated on it. Pure.

Real cells are drawn again rather than numbers from fitted distributions: stalls, steps, moved
probes and fault storms then come as often and as large as they did, together, and there is no model
of their tails to be wrong. Runs of neighbours are drawn, so that what lasts over several cells
does. The drift of the typical token is modelled: the monotone course nearest to it, which every
simulated campaign goes through; after the last measured cell it stays as it is. Where it moves fast
the cells keep their places, since it moves inside them too. What the cells did not show, no
simulated one will.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.cell_times import probes_log
from harness.analysis.series import Array, Series
from harness.analysis.simulate import WARMUP_TOKENS, Campaign
from harness.analysis.simulated_campaign import Design, simulated_plan
from harness.analysis.usable import no_speed
from harness.planned import PlannedCell
from harness.readings import ProbeResult, Probes
from harness.records import CellRecord, Wait

# fewer say nothing of a spread, and leave too little to draw from
MIN_CELLS = 8
# a step of the drift from one cell to the next that shows inside the cells
_MOVING_LOG = 0.03
_TIMES = ("wall_ms", "io_ms", "compute_ms", "stall_ms", "manage_ms", "cpu_ms")


@dataclass(frozen=True)
class Drift:
    """ln of a slowdown that only grows or only shrinks, at times in seconds; arrays (cells,)."""

    at_s: Array
    log: Array

    def at(self, t_s: Array) -> Array:
        """ln of the slowdown at other times; before the first and after the last as there."""
        return np.interp(t_s, self.at_s, self.log)

    @property
    def moving(self) -> NDArray[np.bool_]:
        """Cells from which, or to which, it makes more than a small step; (cells,)."""
        large = np.abs(np.diff(self.log)) > _MOVING_LOG
        return np.append(large, False) | np.insert(large, 0, False)


@dataclass(frozen=True)
class DeviceNoise:
    """Cells of equal settings, in the order they ran, with what is the same in all of them removed.

    `walls`: ln of the wall time per token after the warm-up, less the drift and the mean, by cell.
    `probes`: the same of the probes, None where a cell was not probed. `cell_s`: median over the
    cells; `gap_s`: what passes between two cells beside the spacing.
    """

    records: tuple[CellRecord, ...]
    series: tuple[Series, ...]
    starts_s: Array
    walls: Array
    drift: Drift
    probe_drift: Drift | None
    probes: Array | None
    cell_s: float
    gap_s: float
    spacing_s: float

    @property
    def between_cells_log_sd(self) -> float:
        """Standard deviation of ln wall between cells, drift removed."""
        return float(np.sqrt(np.mean(self.walls**2)))

    @property
    def drift_log(self) -> float:
        """ln of the typical token's slowdown over the campaign."""
        return float(self.drift.log[-1] - self.drift.log[0])

    @property
    def probe_log_sd(self) -> float | None:
        """Standard deviation of ln of the mean of both probes, drift removed; None: not probed."""
        return None if self.probes is None else float(np.sqrt(np.mean(self.probes**2)))

    @property
    def within_cell_log_sd(self) -> float | None:
        """Of ln wall of single tokens about the trace that all cells share, robust against stalls.

        None where the cells are not of one length.
        """
        if len({len(s) for s in self.series}) > 1:
            return None
        logs = np.log([s.wall_ms[WARMUP_TOKENS:] for s in self.series])
        logs -= np.median(logs, axis=1, keepdims=True)
        return float(1.4826 * np.median(np.abs(logs - np.median(logs, axis=0))))


def device_of(records: Sequence[CellRecord], series: Mapping[int, Series]) -> DeviceNoise:
    """What cells of one and the same configuration show of their device.

    `series` by the index of the cell. Cells without a speed or a series are left out. Raises
    ValueError where fewer than MIN_CELLS remain.
    """
    cells = sorted(
        (r for r in records if not no_speed(r) and len(series.get(r.index, ())) > WARMUP_TOKENS),
        key=lambda r: r.index,
    )
    if len(cells) < MIN_CELLS:
        raise ValueError(
            f"{len(cells)} of its cells have per-token times of equal settings, "
            f"{MIN_CELLS} are the least that show a spread"
        )
    traces = tuple(series[r.index] for r in cells)
    steady = [s.wall_ms[WARMUP_TOKENS:] for s in traces]
    durations = np.array([_duration_s(r, s) for r, s in zip(cells, traces, strict=True)])
    spacing_s, gap_s = _pauses_s(cells)
    starts = _starts_s(cells, durations, spacing_s + gap_s)

    # the typical token shows the device's drift, the mean its stalls as well
    typical = np.array([np.log(np.median(w)) for w in steady])
    drift = _drift(starts, typical)
    probed = probes_log(cells)
    probe_drift = None if probed is None else _drift(starts, probed)
    return DeviceNoise(
        records=tuple(cells),
        series=traces,
        starts_s=starts,
        walls=_rest(np.array([np.log(np.mean(w)) for w in steady]), drift),
        drift=drift,
        probe_drift=probe_drift,
        probes=None if probed is None or probe_drift is None else _rest(probed, probe_drift),
        cell_s=float(np.median(durations)),
        gap_s=gap_s,
        spacing_s=spacing_s,
    )


def simulate_device(
    device: DeviceNoise,
    *,
    seed: int,
    effect_pct: float = 0.0,
    pairs: int | None = None,
    spacing_s: float | None = None,
    design: Design = "pairs",
    baseline: str = "B",
    candidates: Sequence[str] = ("C",),
) -> Campaign:
    """One campaign on the device, as `simulate` gives it: plan, records, series by index.

    `effect_pct`: true change of tok/s of every candidate, in all parts of a token's time alike.
    `spacing_s`: None, as in the A/A campaign. Raises ValueError as `simulate` does.
    """
    if not effect_pct > -100:
        raise ValueError(f"an effect of {effect_pct:g} % leaves no speed")
    pause_s = device.spacing_s if spacing_s is None else spacing_s
    plan = simulated_plan(
        design,
        baseline=baseline,
        candidates=candidates,
        blocks=pairs,
        spacing_s=pause_s,
        tokens=len(device.series[0]),
        seed=seed,
    )
    rng = np.random.Generator(np.random.PCG64(seed))
    drawn = _drawn_in_runs(rng, device.drift.moving, len(plan.cells))
    records: list[CellRecord] = []
    series: dict[int, Series] = {}
    at_s = 0.0
    for cell, source in zip(plan.cells, drawn, strict=True):
        if cell.index:
            at_s += pause_s + device.gap_s
        slower = 1.0 if cell.arm == baseline else 1 / (1 + effect_pct / 100)
        record, trace = _cell(device, source, cell, at_s, slower)
        records.append(record)
        series[cell.index] = trace
        at_s += _duration_s(record, trace)
    return plan, records, series


def _cell(
    device: DeviceNoise, source: int, cell: PlannedCell, at_s: float, slower: float
) -> tuple[CellRecord, Series]:
    """The device's cell `source`, moved to `at_s` and slowed by a factor."""
    measured, trace = device.records[source], device.series[source]
    moved_s = np.array([device.starts_s[source], at_s])
    drifted = float(np.diff(device.drift.at(moved_s))[0])
    factor = slower * math.exp(drifted)
    times = {
        name: values * factor for name in _TIMES if (values := getattr(trace, name)) is not None
    }
    moved = dataclasses.replace(trace, **times)
    probed = 1.0
    if device.probe_drift is not None:
        probed = math.exp(float(np.diff(device.probe_drift.at(moved_s))[0]))
    more_s = float(moved.wall_ms.sum() - trace.wall_ms.sum()) / 1e3
    tok_s = measured.metrics.tok_s
    record = dataclasses.replace(
        measured,
        cell=cell.name,
        arm=cell.arm,
        role=cell.role,
        index=cell.index,
        probe=Probes(_scaled(measured.probe.before, probed), _scaled(measured.probe.after, probed)),
        metrics=dataclasses.replace(
            measured.metrics, tok_s=None if tok_s is None else tok_s / factor
        ),
        wait=Wait(cell.wait_s, "spacing"),
        started_unix_s=at_s,
        ended_unix_s=at_s + _duration_s(measured, trace) + more_s,
    )
    return record, moved


def _drawn_in_runs(rng: np.random.Generator, moving: NDArray[np.bool_], wanted: int) -> list[int]:
    """Runs of neighbours, the first following the last, so that every cell is as likely.

    A cell in which the drift moves belongs to its place in the campaign, and stands there again.
    """
    still = np.flatnonzero(~moving)
    if len(still) < MIN_CELLS:
        still, moving = np.arange(len(moving)), np.zeros(len(moving), bool)
    length = max(2, round(1.5 * len(still) ** (1 / 3)))
    starts = rng.integers(0, len(still), -(-wanted // length))
    drawn = [int(still[(start + k) % len(still)]) for start in starts for k in range(length)]
    return [
        i if i < len(moving) and moving[i] else source for i, source in enumerate(drawn[:wanted])
    ]


def _scaled(probe: ProbeResult | None, factor: float) -> ProbeResult | None:
    if probe is None or probe.compute_ms is None:
        return probe
    return dataclasses.replace(probe, compute_ms=probe.compute_ms * factor)


def _drift(t_s: Array, values: Array) -> Drift:
    """The monotone course nearest to the values, up or down; single cells off it do not bend it."""
    smooth = _running_median(values)
    rising, falling = _rising(smooth), -_rising(-smooth)
    nearer = np.sum((smooth - rising) ** 2) <= np.sum((smooth - falling) ** 2)
    return Drift(t_s, rising if nearer else falling)


def _running_median(values: Array) -> Array:
    """Of up to five neighbours, as many before as after."""
    n = len(values)
    reach = [min(2, k, n - 1 - k) for k in range(n)]
    return np.array([np.median(values[k - r : k + r + 1]) for k, r in enumerate(reach)])


def _rising(values: Array) -> Array:
    """Least squares among courses that never fall: neighbours that would are averaged."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((float(value), 1))
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            (a, n), (b, m) = pools[-2:]
            pools[-2:] = [((a * n + b * m) / (n + m), n + m)]
    return np.repeat([mean for mean, _ in pools], [n for _, n in pools])


def _rest(values: Array, drift: Drift) -> Array:
    left = values - drift.log
    rest: Array = left - left.mean()
    return rest


def _duration_s(record: CellRecord, series: Series) -> float:
    if record.started_unix_s is not None and record.ended_unix_s is not None:
        return record.ended_unix_s - record.started_unix_s
    return float(series.wall_ms.sum()) / 1e3


def _pauses_s(cells: Sequence[CellRecord]) -> tuple[float, float]:
    """Medians of the pause asked for, and of what passed beside it; 0 where not recorded."""
    waits = [r.wait.seconds for r in cells[1:] if r.wait is not None]
    beside = [
        b.started_unix_s - a.ended_unix_s - b.wait.seconds
        for a, b in itertools.pairwise(cells)
        if b.index == a.index + 1
        and b.wait is not None
        and b.started_unix_s is not None
        and a.ended_unix_s is not None
    ]
    return (
        float(np.median(waits)) if waits else 0.0,
        max(float(np.median(beside)), 0.0) if beside else 0.0,
    )


def _starts_s(cells: Sequence[CellRecord], durations_s: Array, pause_s: float) -> Array:
    """When each cell began, from the first; one after the other where no clock was kept."""
    began = [r.started_unix_s for r in cells if r.started_unix_s is not None]
    if len(began) == len(cells) and np.all(np.diff(began) > 0):
        return np.array(began) - began[0]
    return np.concatenate(([0.0], np.cumsum(durations_s + pause_s)[:-1]))
