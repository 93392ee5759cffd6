"""The cells on the device's time, and under them what the device showed. Draws only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.device_course import DeviceCourse
from harness.planned import Plan
from harness.records import CellRecord
from harness.report.device_panels import (
    Clock,
    Panel,
    clock_of,
    device_panels,
    left_out,
    unread_cells,
)
from harness.report.plot_style import MOST_STYLES, arm_styles
from harness.report.svg import CHAR, Drawing, Scale, axis_below, axis_left, padded, polyline, steps
from harness.verdicts import CampaignVerdict

_LEFT, _RIGHT, _TOP, _CELLS, _PANEL, _GAP = 52.0, 12.0, 30.0, 190.0, 84.0, 34.0
_LEAST_NUMBERED = 15.0  # pixels that a cell needs for its number
_LEAST_NAMED = 13.0
_DASHES = 4


@dataclass(frozen=True)
class _Cells:
    cells: Sequence[CellRecord]
    spans: Sequence[tuple[float, float]]
    styles: Mapping[str, int]
    out: Collection[int]
    unread: Collection[int]

    @property
    def named(self) -> bool:
        """More arms than can be told apart by colour: their names stand in their bars."""
        return len({r.arm for r in self.cells}) > MOST_STYLES


def timeline(
    verdict: CampaignVerdict,
    plan: Plan,
    records: Sequence[CellRecord],
    device: Mapping[int, DeviceCourse],
    width: float,
) -> Drawing | None:
    """None without cells."""
    cells = sorted(records, key=lambda r: r.index)
    if not cells:
        return None
    clock = clock_of(cells)
    spans = [clock.cell(i, r) for i, r in enumerate(cells)]
    panels = device_panels(cells, spans, clock, device)
    out = left_out(verdict)
    shown = _Cells(cells, spans, styles_of(plan, cells), out, unread_cells(verdict, cells) - out)
    # a device is looked at before its cell, too
    looked = [float(t) for p in panels for _, times, _ in p.curves for t in times]
    first = min(spans[0][0], *looked, *(start for start, _ in spans))
    last = max(*looked, *(end for _, end in spans), first)
    x = Scale(first, last if last > first else first + 1, _LEFT, width - _RIGHT)
    height = _TOP + _CELLS + sum(_GAP + _PANEL for _ in panels) + 44
    d = Drawing(width, height, _in_words(cells, panels, verdict))
    d.text(4, 14, "tok/s of each cell", "label")
    _bars(d, shown, x, _TOP, _TOP + _CELLS)
    y = _TOP + _CELLS
    for panel in panels:
        y += _GAP
        _panel(d, panel, shown, x, y)
        y += _PANEL
    axis_below(d, x, y, y, _axis(clock, width))
    return d


def styles_of(plan: Plan, records: Sequence[CellRecord]) -> dict[str, int]:
    """Which style an arm has, by its number; the baseline's is 0."""
    return {arm: i % MOST_STYLES for i, arm in enumerate(arm_styles(plan, records))}


def _axis(clock: Clock, width: float) -> str:
    return clock.label if width > 500 or clock.zero_s is None else f"{clock.unit} from the start"


def _in_words(
    cells: Sequence[CellRecord], panels: Sequence[Panel], verdict: CampaignVerdict
) -> str:
    speeds = [r.metrics.tok_s for r in cells if r.metrics.tok_s is not None]
    ends = f"{min(speeds):.2f} to {max(speeds):.2f} tok/s" if speeds else "no speeds measured"
    beside = ", ".join(p.label.replace("\n", " ") for p in panels) or "nothing of the device"
    return (
        f"{len(cells)} cells in time, {ends}; drift {verdict.drift.verdict}; under them: {beside}"
    )


def _bars(d: Drawing, shown: _Cells, x: Scale, top: float, bottom: float) -> None:
    speeds = [r.metrics.tok_s for r in shown.cells if r.metrics.tok_s is not None]
    fastest = max(speeds, default=0.0) or 1.0
    y = Scale(0, fastest * 1.08, bottom, top)
    axis_left(d, y, x.start, x.end)
    d.line(x.start, bottom, x.end, bottom, "axis")
    for r, (start, end) in zip(shown.cells, shown.spans, strict=True):
        a, b = x(start), max(x(end), x(start) + 1.5)
        speed = r.metrics.tok_s if r.status == "ok" else None
        style = shown.styles[r.arm]
        if speed is None:
            words = f"{r.index} {r.cell}: {r.status}, speed not measured"
            d.rect(a, bottom - 14, b - a, 14, "cell failed", about=words)
            d.marker((a + b) / 2, bottom - 7, -1, "cross", min(4.5, (b - a) / 2))
        else:
            state = "out" if r.index in shown.out else "pale" if r.index in shown.unread else ""
            said = {"out": ", left out", "pale": ", no verdict rests on it"}.get(state, "")
            words = f"{r.index} {r.cell}: {speed:.2f} tok/s{said}"
            fill = "named" if shown.named else f"a{style}"
            d.rect(a, y(speed), b - a, bottom - y(speed), f"cell {fill} {state}", about=words)
            if state == "out":
                d.rect(a, y(speed), b - a, bottom - y(speed), "hatched")
            if shown.named and b - a >= _LEAST_NAMED:
                middle = (a + b) / 2 + 4
                d.text(
                    middle,
                    bottom - 6,
                    _cut(f"{r.index}  {r.cell}", bottom - top),
                    "in-cell",
                    turn=-90,
                )
            elif not shown.named and b - a > 7:
                d.marker((a + b) / 2, bottom - 9, style, "on-cell", min(3.6, (b - a) / 3))
        named_inside = shown.named and speed is not None and b - a >= _LEAST_NAMED
        roomy = b - a >= _LEAST_NUMBERED or len(shown.cells) <= 16
        if roomy and not named_inside:
            number_y = (bottom - 14 if speed is None else y(speed)) - 4
            d.text((a + b) / 2, number_y, str(r.index), "tick", "middle")


def _cut(name: str, pixels: float) -> str:
    most = int((pixels - 12) / CHAR)
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _panel(d: Drawing, panel: Panel, shown: _Cells, x: Scale, top: float) -> None:
    bottom = top + _PANEL
    for start, end in shown.spans:
        d.rect(x(start), top, max(x(end) - x(start), 0.5), _PANEL, "while-cell")
    values = [float(v) for _, _, ys in panel.curves for v in ys]
    y = Scale(*padded(values, 0.12), bottom, top)
    axis_left(d, y, x.start, x.end)
    label = panel.label.replace("\n", " ")
    d.text(4, top - 8, label, "label")
    at = 4 + 6.8 * len(label) + 16
    for i, (name, times, ys) in enumerate(panel.curves):
        cls = f"curve c{i % _DASHES}"
        px, py = x.all(times), y.all(ys)
        line = steps(px, py) if "cap" in panel.label else (px, py)
        d.path(polyline(*line), cls)
        if len(times) <= 2 * len(shown.cells):  # single readings, not samples
            for a, b in zip(px, py, strict=True):
                d.marker(float(a), float(b), 0, f"reading c{i % _DASHES}", 1.7)
        if len(panel.curves) > 1 or "temperature" in panel.label:
            d.line(at, top - 12, at + 20, top - 12, cls)
            d.text(at + 25, top - 8, name, "note")
            at += 25 + 6.6 * len(name) + 16
