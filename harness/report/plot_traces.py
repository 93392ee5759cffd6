"""Wall time of every token, cell over cell, and where a cell was flagged. Draws only."""

from __future__ import annotations

import re
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
    legend_above,
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
# as the reasons of a contaminated cell name its tokens
_FROM_TOKEN = re.compile(r"from token (\d+) on \(to (\d+)\)")
_TOKENS = re.compile(r"\(tokens (\d+) to (\d+)")


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
    """One column a candidate, beside its baseline. None where no token of any cell has a time."""
    columns = _columns(verdict, plan, records, series)
    if not columns:
        return None
    figure = new_figure(max(_WIDTH_IN, 5.2 * len(columns)), _HEIGHT_IN)
    axes = figure.subplots(2, len(columns), squeeze=False, sharex=True, sharey="row")
    for i, column in enumerate(columns):
        legend_above(axes[0, i], _walls(axes[0, i], column))
        axes[0, i].set_title(wrapped([column.title], 95 if len(columns) == 1 else 55), pad=22)
        _against_median(axes[1, i], column)
        axes[1, i].set_xlabel("token")
    axes[0, 0].set_ylabel("wall time per token, ms")
    of_whom = "all cells'" if plan.baseline is None else f"{plan.baseline}'s"
    axes[1, 0].set_ylabel(f"wall time against {of_whom}\nmedian, smoothed, %")
    return figure


def _columns(
    verdict: CampaignVerdict,
    plan: Plan,
    records: Sequence[CellRecord],
    series: Mapping[int, Series],
) -> list[_Column]:
    traced = [r for r in sorted(records, key=lambda r: r.index) if r.index in series]
    ran = {r.arm for r in traced}
    groups: list[tuple[str, Collection[str]]] = [
        (verdict_in_words(v), {v.baseline, v.candidate})
        for v in verdict.verdicts
        if v.candidate in ran
    ]
    flagged = {c.index: c for c in verdict.cells if c.status == "contaminated"}
    styles = arm_styles(plan, records)
    columns = []
    for title, arms in groups or [(verdict.campaign, ran)]:
        cells = [r for r in traced if r.arm in arms]
        walls = {r.index: series[r.index].wall_ms for r in cells}
        stretches = {
            index: flagged_tokens(flagged[index], len(wall))
            for index, wall in walls.items()
            if index in flagged
        }
        columns.append(_Column(title, cells, walls, stretches, styles, plan.baseline))
    return [c for c in columns if c.cells]


def _walls(axes: Axes, column: _Column) -> list[Any]:
    """Cells faint, the median of each arm strong, flagged stretches over them."""
    handles: list[Any] = []
    for r in column.cells:
        axes.plot(
            column.walls[r.index],
            color=column.styles[r.arm].colour,
            linewidth=0.5,
            alpha=0.3,
            rasterized=column.as_picture,
        )
    for arm in column.arms:
        own, style = column.of_arm(column.walls, arm), column.styles[arm]
        handles += axes.plot(
            median_trace(own),
            color=style.colour,
            linestyle=style.dash,
            linewidth=1.8,
            label=f"median of {arm} ({counted(len(own), 'cell')})",
        )
    for i, (index, (first, last)) in enumerate(column.stretches.items()):
        at = np.arange(first, last + 1)
        lines = axes.plot(
            at,
            column.walls[index][at],
            color=FLAGGED,
            linewidth=0.8,
            alpha=0.65,
            label="contaminated",
            rasterized=column.as_picture,
        )
        handles += lines if i == 0 else []
    axes.set_yscale("log")
    _plain_ticks(axes)
    return handles


def _against_median(axes: Axes, column: _Column) -> None:
    """Every cell over the median baseline cell: what the text makes of a token falls out."""
    measured_by = column.of_arm(column.walls, column.baseline) or list(column.walls.values())
    measure = median_trace(measured_by)
    percent = {index: _percent(wall, measure) for index, wall in column.walls.items()}
    axes.axhline(0, color=INK, linewidth=0.8)
    for r in column.cells:
        axes.plot(
            percent[r.index],
            color=column.styles[r.arm].colour,
            linewidth=0.7,
            alpha=0.4,
            rasterized=column.as_picture,
        )
    for arm in column.arms:
        style = column.styles[arm]
        own = median_trace(column.of_arm(percent, arm))
        axes.plot(own, color=style.colour, linestyle=style.dash, linewidth=1.8)
    for i, (index, (first, last)) in enumerate(column.stretches.items()):
        at = np.arange(first, min(last + 1, len(percent[index])))
        axes.plot(at, percent[index][at], color=FLAGGED, linewidth=1.3)
        if i < _MOST_NAMED and len(at):
            _name(axes, f"cell {index}", float(at[-1]), float(percent[index][at[-1]]))
    if len(column.stretches) > _MOST_NAMED:
        words = f"{len(column.stretches)} contaminated cells"
        axes.text(1, 0.02, words, transform=axes.transAxes, ha="right", fontsize=SMALL)
    axes.set_ylim(*_seen(np.concatenate(list(percent.values()))))
    axes.set_xlim(left=-1)
    axes.axvspan(-1, WARM_UP_TOKENS - 0.5, color=FAINT, alpha=0.15, linewidth=0)
    axes.text(-0.5, 0.02, "warm-up", transform=axes.get_xaxis_transform(), fontsize=SMALL)


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
    """Those that its reasons name; all, where they name none."""
    for reason in cell.reasons:
        found = _FROM_TOKEN.search(reason) or _TOKENS.search(reason)
        if found:
            first, last = int(found[1]), min(int(found[2]), tokens - 1)
            if first < last:
                return first, last
    return 0, tokens - 1


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
