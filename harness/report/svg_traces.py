"""Wall time of every token, a candidate's cells over its baseline's. Draws only."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from harness.analysis.series import Array
from harness.analysis.wall_parts import WARM_UP_TOKENS
from harness.report.svg import Drawing, Scale, axis_below, axis_left, polyline, signed
from harness.report.trace_columns import TraceColumn, median_trace, seen_range

_LEFT, _RIGHT, _TOP, _HEIGHT, _BELOW = 52.0, 10.0, 26.0, 220.0, 40.0
_NARROW = 560
# more cells than this in one drawing: a cell each would be a blur, and megabytes
_MOST_CELLS = 60
_LEAST_MS = 1e-3
_Axes = tuple[Scale, Scale]
_Place = tuple[float, float, float]  # left, top, width


def pair_traces(column: TraceColumn, styles: Mapping[str, int], width: float) -> Drawing:
    """Wall times, and beside them (narrow: under them) what they are against the baseline's."""
    narrow = width < _NARROW
    down = 2 if narrow else 1
    each = width if narrow else width / 2 - 8
    d = Drawing(width, (_TOP + _HEIGHT + _BELOW) * down, _in_words(column))
    _walls(d, column, styles, (0.0, 0.0, each))
    left, top = (0.0, _TOP + _HEIGHT + _BELOW) if narrow else (width / 2 + 8, 0.0)
    _ratios(d, column, styles, (left, top, each))
    return d


def arm_traces(column: TraceColumn, styles: Mapping[str, int], width: float) -> Drawing:
    """One arm by itself."""
    d = Drawing(width, _TOP + _HEIGHT + _BELOW, _in_words(column))
    _walls(d, column, styles, (0.0, 0.0, width))
    return d


def _in_words(column: TraceColumn) -> str:
    medians = (
        f"{arm} {np.median(np.concatenate(column.of_arm(column.walls, arm))):.3g} ms"
        for arm in column.arms
    )
    return f"wall time of every token; median of all: {', '.join(medians)}"


def _walls(d: Drawing, column: TraceColumn, styles: Mapping[str, int], place: _Place) -> None:
    every = np.concatenate(list(column.walls.values()))
    every = np.maximum(every[np.isfinite(every)], _LEAST_MS)
    low, high = np.quantile(every, 0.001) / 1.05, np.max(every) * 1.1
    left, top, _ = place
    x, y = axes = _axes(d, column, (float(low), float(high)), place, log=True)
    axis_left(d, y, x.start, x.end)
    d.text(left + 4, top + 14, "wall time per token, ms (logarithmic)", "label")
    _cells(d, column, column.walls, styles, axes)
    alone = " alone" if len(column.arms) == 1 else ""
    for arm in column.arms:
        own = median_trace(column.of_arm(column.walls, arm))
        _line(d, own, axes, f"median a{styles[arm]}{alone}")
    for index, (first, last) in column.stretches.items():
        _line(d, column.walls[index][first : last + 1], axes, "flagged", first)


def _ratios(d: Drawing, column: TraceColumn, styles: Mapping[str, int], place: _Place) -> None:
    """A line a pair: what the device did to both of its cells falls out."""
    pairs = column.paired_percent()
    left, top, _ = place
    if not pairs:
        d.text(left + 4, top + 14, "no pair of cells to compare token by token", "label")
        return
    counted = [percent for percent, counts in pairs if counts]
    seen = np.concatenate(counted or [percent for percent, _ in pairs])
    low, high = seen_range(seen)
    x, y = axes = _axes(d, column, (min(low, -2.0), max(high, 2.0)), place)
    d.rect(x.start, top + _TOP, x(min(WARM_UP_TOKENS, x.high)) - x.start, _HEIGHT, "while-cell")
    d.text(x.start + 3, top + _TOP + _HEIGHT - 5, "warm-up", "note")
    axis_left(d, y, x.start, x.end, form=signed)
    d.line(x.start, y(0), x.end, y(0), "zero")
    words = "wall time against the baseline cell of its pair, smoothed, %"
    d.text(left + 4, top + 14, words, "label")
    candidate = next((arm for arm in column.arms if arm != column.baseline), "")
    style = styles.get(candidate, 1)
    for percent, counts in pairs:
        _line(d, percent, axes, f"pair a{style}" if counts else "pair out")
    if counted:
        _line(d, median_trace(counted), axes, f"median a{style}")


def _axes(
    d: Drawing,
    column: TraceColumn,
    ends: tuple[float, float],
    place: _Place,
    log: bool = False,
) -> _Axes:
    left, top, width = place
    longest = max(len(w) for w in column.walls.values())
    x = Scale(0, max(longest - 1, 1), left + _LEFT, left + width - _RIGHT)
    y = Scale(*ends, top + _TOP + _HEIGHT, top + _TOP, log)
    axis_below(d, x, y.start, y.start, "token")
    return x, y


def _cells(
    d: Drawing,
    column: TraceColumn,
    values: Mapping[int, Array],
    styles: Mapping[str, int],
    axes: _Axes,
) -> None:
    """A faint line a cell; all of an arm in one path."""
    if len(values) > _MOST_CELLS:
        return
    for arm in column.arms:
        lines = [_path(v, axes, 0) for r in column.cells if r.arm == arm for v in [values[r.index]]]
        d.path("".join(lines), f"trace a{styles[arm]}")


def _line(d: Drawing, values: Array, axes: _Axes, cls: str, first: int = 0) -> None:
    d.path(_path(values, axes, first), cls)


def _path(values: Array, axes: _Axes, first: int) -> str:
    """Cut off where it leaves the axes, as a line along their edge."""
    x, y = axes
    low, high = min(y.low, y.high), max(y.low, y.high)
    seen = np.clip(values, low, high)
    return polyline(x.all(np.arange(first, first + len(values), dtype=float)), y.all(seen))
