"""Wall times of tokens, brought together by what is compared, for plots and the report. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.series import Array, Series
from harness.planned import Plan
from harness.records import CellRecord
from harness.report.plot_style import MOST_POINTS, ArmStyle, arm_styles, verdict_in_words
from harness.verdicts import CampaignVerdict, CandidateVerdict, CellVerdict

# tokens over which a cell's own noise is smoothed, where it is compared with its arm
_SMOOTHED = 9
_MOST_NAMED = 6


@dataclass(frozen=True)
class TracePair:
    """Cells of a candidate against those of the baseline that ran beside them, by index.

    `counts`: the verdict rests on it.
    """

    baseline: tuple[int, ...]
    candidate: tuple[int, ...]
    counts: bool


@dataclass(frozen=True)
class TraceColumn:
    """Cells that are drawn together. `walls`: milliseconds per token, by index of the cell.

    `stretches`: first and last flagged token of contaminated cells. `as_picture`: too many points
    for lines. `pairs`: of a candidate, in which a drift of the device falls out.
    """

    title: str
    cells: Sequence[CellRecord]
    walls: Mapping[int, Array]
    stretches: Mapping[int, tuple[int, int]]
    styles: Mapping[str, ArmStyle]
    baseline: str | None
    pairs: tuple[TracePair, ...] = ()

    @property
    def as_picture(self) -> bool:
        return sum(len(w) for w in self.walls.values()) > MOST_POINTS

    @property
    def named(self) -> bool:
        """Few enough flagged stretches for each to be told."""
        return len(self.stretches) <= _MOST_NAMED

    @property
    def arms(self) -> list[str]:
        ran = {r.arm for r in self.cells}
        return [arm for arm in self.styles if arm in ran]

    def paired_percent(self) -> list[tuple[Array, bool]]:
        """Of every pair the change of the wall time, token by token, and whether it counts."""
        return [
            (percent_of(self._median(p.candidate), self._median(p.baseline)), p.counts)
            for p in self.pairs
        ]

    def _median(self, cells: tuple[int, ...]) -> Array:
        return median_trace([self.walls[i] for i in cells])

    def of_arm(self, values: Mapping[int, Array], arm: str | None) -> list[Array]:
        return [values[r.index] for r in self.cells if r.arm == arm]


@dataclass(frozen=True)
class Traces:
    """`compared`: one column a candidate, beside its baseline; else one an arm.

    Where nothing is compared, one arm's text need not be another's.
    """

    compared: bool
    columns: tuple[TraceColumn, ...]


def traces_of(
    verdict: CampaignVerdict,
    plan: Plan,
    records: Sequence[CellRecord],
    series: Mapping[int, Series],
) -> Traces | None:
    """None where no token of any cell has a time."""
    traced = [r for r in sorted(records, key=lambda r: r.index) if r.index in series]
    if not traced:
        return None
    ran = {r.arm for r in traced}
    compared = [v for v in verdict.verdicts if {v.candidate, v.baseline} <= ran]

    def column(title: str, arms: Collection[str]) -> TraceColumn:
        return _column(title, [r for r in traced if r.arm in arms], verdict, plan, series)

    if compared:
        columns = [
            dataclasses.replace(found, pairs=_pairs_of(v, verdict, found))
            for v in compared
            for found in [column(verdict_in_words(v), {v.baseline, v.candidate})]
        ]
    else:
        columns = [column(arm, {arm}) for arm in arm_styles(plan, traced) if arm in ran]
    return Traces(bool(compared), tuple(columns))


def _column(
    title: str,
    cells: Sequence[CellRecord],
    verdict: CampaignVerdict,
    plan: Plan,
    series: Mapping[int, Series],
) -> TraceColumn:
    walls = {r.index: series[r.index].wall_ms for r in cells}
    stretches = {
        c.index: flagged_tokens(c, len(walls[c.index]))
        for c in verdict.cells
        if c.status == "contaminated" and c.index in walls
    }
    return TraceColumn(title, cells, walls, stretches, arm_styles(plan, cells), plan.baseline)


def _pairs_of(
    v: CandidateVerdict, verdict: CampaignVerdict, column: TraceColumn
) -> tuple[TracePair, ...]:
    """As the design has them; without pairs, each cell with the baseline cells next to it."""
    own = [
        TracePair(p.baseline_cells, p.candidate_cells, p.status == "clean")
        for p in verdict.pairs
        if p.candidate == v.candidate
    ]
    if not own:
        own = [
            TracePair((b.index,), (c.index,), {b.index, c.index} <= set(v.cells_used))
            for c in column.cells
            for b in column.cells
            if (c.arm, b.arm) == (v.candidate, v.baseline) and abs(c.index - b.index) == 1
        ]
    return tuple(
        p
        for p in own
        if p.baseline and p.candidate and {*p.baseline, *p.candidate} <= column.walls.keys()
    )


def percent_of(wall: Array, measure: Array) -> Array:
    shared = min(len(wall), len(measure))
    return np.asarray(np.expm1(smoothed(np.log(wall[:shared] / measure[:shared]))) * 100, float)


def seen_range(percent: Array) -> tuple[float, float]:
    """All but the farthest of it."""
    low, high = np.quantile(percent, [0.005, 0.995])
    pad = 0.1 * (high - low) + 2
    return float(low - pad), float(high + pad)


def flagged_tokens(cell: CellVerdict, tokens: int) -> tuple[int, int]:
    """Those that its reasons are about; all, where that is the whole cell."""
    if cell.stretch is None:
        return 0, tokens - 1
    first, last = cell.stretch
    return first, min(last, tokens - 1)


def median_trace(walls: Sequence[Array]) -> Array:
    """Token by token over all cells that got so far."""
    longest = max(len(w) for w in walls)
    table = np.full((len(walls), longest), np.nan)
    for i, wall in enumerate(walls):
        table[i, : len(wall)] = wall
    return np.asarray(np.nanmedian(table, axis=0), float)


def smoothed(values: Array) -> Array:
    """Running median over `_SMOOTHED` tokens, over fewer at the ends."""
    half = _SMOOTHED // 2
    padded = np.concatenate([np.full(half, np.nan), values, np.full(half, np.nan)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, _SMOOTHED)
    return np.asarray(np.nanmedian(windows, axis=1), float)
