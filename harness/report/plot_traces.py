"""Wall time of every token, cell over cell, and where a cell was flagged. Draws only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.analysis.series import Array, Series
from harness.analysis.wall_parts import WARM_UP_TOKENS
from harness.records import CellRecord, Plan
from harness.report.plot_style import (
    FAINT,
    FLAGGED,
    INK,
    MOST_POINTS,
    SMALL,
    ArmStyle,
    arm_styles,
    head,
    new_figure,
    verdict_in_words,
    wrapped,
)
from harness.verdicts import CampaignVerdict, CellVerdict
from harness.words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH_IN, _HEIGHT_IN = 9.5, 7.0
# tokens over which a cell's own noise is smoothed, where it is compared with its arm
_SMOOTHED = 9
_MOST_NAMED = 6
_MOST_ACROSS = 4
_MOST_BESIDE = 3
_WALL = "wall time per token, ms"


@dataclass(frozen=True)
class _Column:
    """Cells that are drawn together. `walls`: milliseconds per token, by index of the cell.

    `stretches`: first and last flagged token of contaminated cells. `as_picture`: too many points
    for lines.
    """

    title: str
    cells: Sequence[CellRecord]
    walls: Mapping[int, Array]
    stretches: Mapping[int, tuple[int, int]]
    styles: Mapping[str, ArmStyle]
    baseline: str | None

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

    def of_arm(self, values: Mapping[int, Array], arm: str | None) -> list[Array]:
        return [values[r.index] for r in self.cells if r.arm == arm]


def draw_traces(
    verdict: CampaignVerdict,
    plan: Plan,
    records: Sequence[CellRecord],
    series: Mapping[int, Series],
) -> Figure | None:
    """One column a candidate, beside its baseline. None where no token of any cell has a time.

    Where nothing is compared, one panel an arm: its text need not be another's.
    """
    traced = [r for r in sorted(records, key=lambda r: r.index) if r.index in series]
    if not traced:
        return None
    ran = {r.arm for r in traced}
    compared = [v for v in verdict.verdicts if {v.candidate, v.baseline} <= ran]

    def column(title: str, arms: Collection[str]) -> _Column:
        return _column(title, [r for r in traced if r.arm in arms], verdict, plan, series)

    if compared:
        columns = [column(verdict_in_words(v), {v.baseline, v.candidate}) for v in compared]
        return _of_pairs(columns)
    arms = [column(arm, {arm}) for arm in arm_styles(plan, traced) if arm in ran]
    return _of_arms(verdict.campaign, arms)


def _of_pairs(columns: Sequence[_Column]) -> Figure:
    across = min(len(columns), _MOST_BESIDE)
    down = -(-len(columns) // across)
    figure = new_figure(max(_WIDTH_IN, 5.2 * across), _HEIGHT_IN * down)
    grid = figure.subplots(2 * down, across, squeeze=False, sharex=True)
    walls, ratios = grid[::2].ravel(), grid[1::2].ravel()
    for upper, lower, column in zip(walls, ratios, columns, strict=False):
        title = wrapped([column.title], 95 if across == 1 else 46)
        head(upper, title, _walls(upper, column), 3 if across == 1 else 2)
        _against_median(lower, column)
        lower.set_xlabel("token")
        upper.set_ylabel(_WALL)
        lower.set_ylabel(f"wall time against {column.baseline}'s\nmedian, smoothed, %")
    for axes in (walls, ratios):
        shown = axes[: len(columns)]
        low, high = zip(*(a.get_ylim() for a in shown), strict=True)
        for a in shown:
            a.set_ylim(min(low), max(high))
        for a in axes[len(columns) :]:
            a.set_visible(False)
    return figure


def _of_arms(campaign: str, columns: Sequence[_Column]) -> Figure:
    across = min(len(columns), _MOST_ACROSS)
    down = -(-len(columns) // across)
    figure = new_figure(_WIDTH_IN if across > 1 else 0.7 * _WIDTH_IN, 0.6 + 2.3 * down)
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for axes, column in zip(grid.flat, columns, strict=False):
        _walls(axes, column, strong=0.9)
        flagged = f", {len(column.stretches)} contaminated (black)" if column.stretches else ""
        words = f"{column.title}: {counted(len(column.cells), 'cell')}{flagged}"
        axes.set_title(wrapped([words], 30 if across > 2 else 60), fontsize=SMALL + 0.5)
    for axes in list(grid.flat)[len(columns) :]:
        axes.set_visible(False)
    figure.suptitle(campaign, x=0.01, ha="left", fontsize=9.5, fontweight="bold")
    figure.supylabel(_WALL, fontsize=9)
    figure.supxlabel("token", fontsize=9)
    return figure


def _column(
    title: str,
    cells: Sequence[CellRecord],
    verdict: CampaignVerdict,
    plan: Plan,
    series: Mapping[int, Series],
) -> _Column:
    walls = {r.index: series[r.index].wall_ms for r in cells}
    stretches = {
        c.index: flagged_tokens(c, len(walls[c.index]))
        for c in verdict.cells
        if c.status == "contaminated" and c.index in walls
    }
    return _Column(title, cells, walls, stretches, arm_styles(plan, cells), plan.baseline)


def _walls(axes: Axes, column: _Column, strong: float = 1.8) -> list[Any]:
    """Cells faint, the median of each arm `strong` (points), flagged stretches over them."""
    handles: list[Any] = []
    _faint(axes, column, column.walls, linewidth=0.5, alpha=0.3)
    for arm in column.arms:
        own, style = column.of_arm(column.walls, arm), column.styles[arm]
        handles += axes.plot(
            median_trace(own),
            color=style.colour,
            linestyle=style.dash if len(column.arms) > 1 else "-",
            linewidth=strong,
            label=f"median of {arm} ({counted(len(own), 'cell')})",
        )
    for i, (index, (first, last)) in enumerate(column.stretches.items()):
        at = np.arange(first, last + 1)
        lines = axes.plot(
            at,
            column.walls[index][at],
            color=FLAGGED,
            linewidth=0.8,
            alpha=0.65 if column.named else 0.3,
            label="contaminated",
            rasterized=column.as_picture,
        )
        handles += lines if i == 0 else []
    axes.set_yscale("log")
    _plain_ticks(axes)
    return handles


def _against_median(axes: Axes, column: _Column) -> None:
    """Every cell over the median baseline cell: what the text makes of a token falls out."""
    measure = median_trace(column.of_arm(column.walls, column.baseline))
    percent = {index: _percent(wall, measure) for index, wall in column.walls.items()}
    axes.axhline(0, color=INK, linewidth=0.8)
    _faint(axes, column, percent, linewidth=0.7, alpha=0.4)
    for arm in column.arms:
        style = column.styles[arm]
        own = median_trace(column.of_arm(percent, arm))
        axes.plot(own, color=style.colour, linestyle=style.dash, linewidth=1.8)
    for index, (first, last) in column.stretches.items():
        at = np.arange(first, min(last + 1, len(percent[index])))
        weight, alpha = (1.3, 1.0) if column.named else (0.8, 0.6)
        axes.plot(at, percent[index][at], color=FLAGGED, linewidth=weight, alpha=alpha)
        if column.named and len(at):
            _name(axes, f"cell {index}", float(at[-1]), float(percent[index][at[-1]]))
    if not column.named:
        words = f"{len(column.stretches)} contaminated cells"
        axes.text(1, 0.02, words, transform=axes.transAxes, ha="right", fontsize=SMALL)
    axes.set_ylim(*_seen(np.concatenate(list(percent.values()))))
    axes.set_xlim(left=-1)
    axes.axvspan(-1, WARM_UP_TOKENS - 0.5, color=FAINT, alpha=0.15, linewidth=0)
    axes.text(-0.5, 0.02, "warm-up", transform=axes.get_xaxis_transform(), fontsize=SMALL)


def _faint(
    axes: Axes, column: _Column, values: Mapping[int, Array], *, linewidth: float, alpha: float
) -> None:
    """One line a cell."""
    from matplotlib.collections import LineCollection

    axes.add_collection(
        LineCollection(
            [np.column_stack([np.arange(len(v)), v]) for v in values.values()],
            colors=[column.styles[r.arm].colour for r in column.cells],
            linewidths=linewidth,
            alpha=alpha,
            rasterized=column.as_picture,
        )
    )
    axes.autoscale_view()


def _name(axes: Axes, words: str, x: float, y: float) -> None:
    axes.annotate(
        words,
        (x, y),
        xytext=(3, 0),
        textcoords="offset points",
        fontsize=SMALL,
        color=FLAGGED,
    )


def _percent(wall: Array, measure: Array) -> Array:
    shared = min(len(wall), len(measure))
    return np.asarray(np.expm1(smoothed(np.log(wall[:shared] / measure[:shared]))) * 100, float)


def _seen(percent: Array) -> tuple[float, float]:
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


def _plain_ticks(axes: Axes) -> None:
    """50, 100, 200 rather than powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
