"""Wall time of every token, cell over cell, and where a cell was flagged. Draws only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.analysis.series import Array, Series
from harness.analysis.wall_parts import WARM_UP_TOKENS
from harness.planned import Plan
from harness.records import CellRecord
from harness.report.plot_style import (
    FAINT,
    FLAGGED,
    INK,
    SMALL,
    head,
    new_figure,
    wrapped,
)
from harness.report.trace_columns import (
    TraceColumn,
    median_trace,
    percent_of,
    seen_range,
    traces_of,
)
from harness.verdicts import CampaignVerdict
from harness.words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH_IN, _HEIGHT_IN = 9.5, 7.0
_MOST_ACROSS = 4
_MOST_BESIDE = 3
_WALL = "wall time per token, ms"


def draw_traces(
    verdict: CampaignVerdict,
    plan: Plan,
    records: Sequence[CellRecord],
    series: Mapping[int, Series],
) -> Figure | None:
    """One column a candidate, or one panel an arm; None where no token of any cell has a time."""
    traces = traces_of(verdict, plan, records, series)
    if traces is None:
        return None
    if traces.compared:
        return _of_pairs(traces.columns)
    return _of_arms(verdict.campaign, traces.columns)


def _of_pairs(columns: Sequence[TraceColumn]) -> Figure:
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


def _of_arms(campaign: str, columns: Sequence[TraceColumn]) -> Figure:
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


def _walls(axes: Axes, column: TraceColumn, strong: float = 1.8) -> list[Any]:
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


def _against_median(axes: Axes, column: TraceColumn) -> None:
    """Every cell over the median baseline cell: what the text makes of a token falls out."""
    measure = median_trace(column.of_arm(column.walls, column.baseline))
    percent = {index: percent_of(wall, measure) for index, wall in column.walls.items()}
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
    axes.set_ylim(*seen_range(np.concatenate(list(percent.values()))))
    axes.set_xlim(left=-1)
    axes.axvspan(-1, WARM_UP_TOKENS - 0.5, color=FAINT, alpha=0.15, linewidth=0)
    axes.text(-0.5, 0.02, "warm-up", transform=axes.get_xaxis_transform(), fontsize=SMALL)


def _faint(
    axes: Axes, column: TraceColumn, values: Mapping[int, Array], *, linewidth: float, alpha: float
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


def _plain_ticks(axes: Axes) -> None:
    """50, 100, 200 rather than powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
