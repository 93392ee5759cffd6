"""Wall time of every token, cell over cell, and where a cell was flagged. Draws only."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.analysis.series import Array, Series
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


def draw_traces(
    verdict: CampaignVerdict,
    plan: Plan,
    records: Sequence[CellRecord],
    series: Mapping[int, Series],
) -> Figure | None:
    """One column a candidate, beside its baseline. None where no token of any cell has a time."""
    traced = [r for r in sorted(records, key=lambda r: r.index) if r.index in series]
    if not traced:
        return None
    flagged = {c.index: c for c in verdict.cells if c.status == "contaminated"}
    columns = _columns(verdict, plan, traced)
    figure = new_figure(max(_WIDTH_IN, 5.2 * len(columns)), _HEIGHT_IN)
    axes = figure.subplots(2, len(columns), squeeze=False, sharex=True, sharey="row")
    styles = arm_styles(plan, records)
    for i, (title, arms) in enumerate(columns):
        cells = [r for r in traced if r.arm in arms]
        handles = _walls(axes[0, i], cells, series, styles, flagged)
        axes[0, i].set_title(wrapped([title], 95 if len(columns) == 1 else 55), pad=22)
        legend_above(axes[0, i], handles)
        _against_arm(axes[1, i], cells, series, styles, flagged)
        axes[1, i].set_xlabel("token")
    axes[0, 0].set_ylabel("wall time per token, ms")
    axes[1, 0].set_ylabel("against its arm's\nmedian token, smoothed, %")
    return figure


def _columns(
    verdict: CampaignVerdict, plan: Plan, traced: Sequence[CellRecord]
) -> list[tuple[str, Collection[str]]]:
    ran = {r.arm for r in traced}
    columns: list[tuple[str, Collection[str]]] = [
        (verdict_in_words(v), {v.baseline, v.candidate})
        for v in verdict.verdicts
        if v.candidate in ran
    ]
    return columns or [(verdict.campaign, ran)]


def _walls(
    axes: Axes,
    cells: Sequence[CellRecord],
    series: Mapping[int, Series],
    styles: Mapping[str, ArmStyle],
    flagged: Mapping[int, CellVerdict],
) -> list[Any]:
    """Cells faint, the median of each arm strong, flagged stretches over them."""
    handles: list[Any] = []
    many = sum(len(series[r.index]) for r in cells) > MOST_POINTS
    for r in cells:
        style = styles[r.arm]
        axes.plot(
            series[r.index].wall_ms, color=style.colour, linewidth=0.5, alpha=0.3, rasterized=many
        )
    for arm in dict.fromkeys(r.arm for r in sorted(cells, key=lambda r: list(styles).index(r.arm))):
        own = [series[r.index].wall_ms for r in cells if r.arm == arm]
        style = styles[arm]
        (line,) = axes.plot(
            median_trace(own),
            color=style.colour,
            linestyle=style.dash,
            linewidth=1.8,
            label=f"median of {arm} ({len(own)})",
        )
        handles.append(line)
    stretches = _stretches(cells, series, flagged)
    for index, (first, last) in stretches.items():
        at = np.arange(first, last + 1)
        (line,) = axes.plot(
            at,
            series[index].wall_ms[first : last + 1],
            color=FLAGGED,
            linewidth=1.1,
            alpha=0.8,
            label="contaminated stretch",
            rasterized=many,
        )
    if stretches:
        handles.append(line)
    axes.set_yscale("log")
    _plain_ticks(axes)
    return handles


def _against_arm(
    axes: Axes,
    cells: Sequence[CellRecord],
    series: Mapping[int, Series],
    styles: Mapping[str, ArmStyle],
    flagged: Mapping[int, CellVerdict],
) -> None:
    """Every cell over the median of its arm: what the text makes of a token falls out."""
    stretches = _stretches(cells, series, flagged)
    of_arm = {
        arm: median_trace([series[r.index].wall_ms for r in cells if r.arm == arm])
        for arm in {r.arm for r in cells}
    }
    many = sum(len(series[r.index]) for r in cells) > MOST_POINTS
    axes.axhline(0, color=INK, linewidth=0.8)
    largest = 10.0
    named = 0
    for r in cells:
        wall = series[r.index].wall_ms
        ratio = smoothed(np.log(wall / of_arm[r.arm][: len(wall)]))
        percent = np.expm1(ratio) * 100
        largest = max(largest, float(np.quantile(np.abs(percent), 0.99)))
        axes.plot(percent, color=styles[r.arm].colour, linewidth=0.8, alpha=0.45, rasterized=many)
        if r.index not in stretches:
            continue
        first, last = stretches[r.index]
        axes.plot(
            np.arange(first, last + 1), percent[first : last + 1], color=FLAGGED, linewidth=1.8
        )
        named += 1
        if named <= _MOST_NAMED:
            axes.annotate(
                f"cell {r.index}",
                (last, percent[last]),
                xytext=(3, 0),
                textcoords="offset points",
                fontsize=SMALL,
                color=FLAGGED,
                annotation_clip=False,
            )
    if named > _MOST_NAMED:
        words = f"{named} contaminated cells"
        axes.text(1, 0.98, words, transform=axes.transAxes, ha="right", va="top", fontsize=SMALL)
    axes.set_ylim(-min(largest, 95.0), min(largest, 400.0))
    axes.axvspan(0, 16, color=FAINT, alpha=0.15, linewidth=0)


def _stretches(
    cells: Sequence[CellRecord],
    series: Mapping[int, Series],
    flagged: Mapping[int, CellVerdict],
) -> dict[int, tuple[int, int]]:
    """First and last flagged token of contaminated cells, by index."""
    return {
        r.index: flagged_tokens(flagged[r.index], len(series[r.index]))
        for r in cells
        if r.index in flagged
    }


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
