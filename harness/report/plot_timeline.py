"""The cells on the device's time: how fast they were, and what the device showed. Draws only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.analysis.device_course import DeviceCourse
from harness.analysis.device_state import caps_khz, cpu_sensor, states_in_order
from harness.analysis.series import Array
from harness.analysis.verdict_labels import DRIFT_WORDS
from harness.records import CellRecord, DeviceState, Plan, ProbeResult
from harness.report.plot_style import (
    FAINT,
    INK,
    MOST_STYLES,
    SMALL,
    ArmStyle,
    arm_styles,
    head,
    new_figure,
    verdict_in_words,
    wrapped,
)
from harness.verdicts import CampaignVerdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH_IN, _CELLS_IN, _PANEL_IN = 10.5, 2.6, 1.35
_GIB = 2**30
_MOST_NUMBERED = 48
_MOST_MARKED = 120
# a curve, its times and values; one of several in a panel
Curve = tuple[str, Array, Array]
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
_SHADES = (INK, "#0072b2", "#e69f00", "#009e73")


@dataclass(frozen=True)
class _Panel:
    label: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class _Clock:
    """Where a moment is on the axis: time from the first cell, or cells where no times are."""

    zero_s: float | None
    unit: str = "minutes"

    @property
    def label(self) -> str:
        if self.zero_s is None:
            return "cells in order (when they ran was not recorded)"
        return f"{self.unit} from the start of the first cell"

    @property
    def unit_s(self) -> float:
        return {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}[self.unit]

    def at(self, moment_s: float) -> float:
        """Of a moment in unix time, where there are times."""
        return (moment_s - (self.zero_s or 0.0)) / self.unit_s

    def cell(self, position: int, r: CellRecord) -> tuple[float, float]:
        """Start and end of the engine; without an end, as long as its decoding took."""
        if self.zero_s is None or r.started_unix_s is None:
            return position, position + 0.85
        tokens, speed = r.counters.tokens, r.metrics.tok_s
        took_s = tokens / speed if tokens and speed else 0.0
        end_s = r.started_unix_s + took_s if r.ended_unix_s is None else r.ended_unix_s
        return self.at(r.started_unix_s), self.at(end_s)


def _clock(cells: Sequence[CellRecord]) -> _Clock:
    starts = [r.started_unix_s for r in cells if r.started_unix_s is not None]
    if len(starts) < len(cells):
        return _Clock(None)
    ends = [r.ended_unix_s for r in cells if r.ended_unix_s is not None]
    lasted_s = max(starts + ends) - min(starts)
    unit = "seconds" if lasted_s < 180 else "minutes" if lasted_s < 3 * 3600 else "hours"
    return _Clock(min(starts), unit)


def draw_timeline(
    verdict: CampaignVerdict,
    plan: Plan,
    records: Sequence[CellRecord],
    device: Mapping[int, DeviceCourse],
) -> Figure | None:
    """Speeds of all cells, and under them a panel for whatever was recorded of the device.

    None without cells. `device`: what was sampled while a cell ran, by the cell's index.
    """
    cells = sorted(records, key=lambda r: r.index)
    if not cells:
        return None
    clock = _clock(cells)
    spans = [clock.cell(i, r) for i, r in enumerate(cells)]
    panels = _panels(cells, spans, clock, device)
    figure = new_figure(_WIDTH_IN, _CELLS_IN + _PANEL_IN * len(panels) + 0.8)
    axes = figure.subplots(
        1 + len(panels),
        1,
        sharex=True,
        squeeze=False,
        height_ratios=[_CELLS_IN, *[_PANEL_IN] * len(panels)],
    )[:, 0]
    _bars(axes[0], verdict, plan, cells, spans)
    for panel_axes, panel in zip(axes[1:], panels, strict=True):
        _draw(panel_axes, panel)
    for panel_axes in axes[1:]:
        panel_axes.broken_barh(
            [(start, end - start) for start, end in spans],
            (0, 1),
            transform=panel_axes.get_xaxis_transform(),
            color=FAINT,
            alpha=0.13,
            linewidth=0,
        )
    said = [clock.label, *_not_recorded(panels), *_rejected(cells)]
    axes[-1].set_xlabel(wrapped(said, 140))
    figure.suptitle(
        wrapped(_title(verdict), 110), x=0.01, ha="left", fontsize=9.5, fontweight="bold"
    )
    return figure


def _title(verdict: CampaignVerdict) -> list[str]:
    change = verdict.drift.sentinel_change_pct
    by = "" if change is None else f" ({change:+.1f} %)"
    drift = f"drift: {DRIFT_WORDS[verdict.drift.verdict]}{by}"
    return [verdict.campaign, *(verdict_in_words(v) for v in verdict.verdicts), drift]


def _bars(
    axes: Axes,
    verdict: CampaignVerdict,
    plan: Plan,
    cells: Sequence[CellRecord],
    spans: Sequence[tuple[float, float]],
) -> None:
    """A bar a cell, as high as it was fast; hatched where it or its pair was left out.

    More arms than can be told apart by colour are named in their bars.
    """
    styles, out = arm_styles(plan, cells), _left_out(verdict)
    unread = _unread(verdict, cells) - out
    named = len({r.arm for r in cells}) > MOST_STYLES
    least = 0.002 * (spans[-1][1] - spans[0][0])
    fastest = max((r.metrics.tok_s or 0.0 for r in cells), default=0.0) or 1.0
    for r, (start, end) in zip(cells, spans, strict=True):
        ok = r.status == "ok" and r.metrics.tok_s is not None
        height = (r.metrics.tok_s if ok else None) or 0.06 * fastest
        axes.bar(
            start,
            height,
            width=max(end - start, least),
            align="edge",
            color=("#c8d6e5" if named else styles[r.arm].colour) if ok else "white",
            edgecolor=INK if ok else FAINT,
            linewidth=0.6,
            hatch="////" if r.index in out else "" if ok else "xx",
            alpha=0.55 if r.index in out else 0.3 if r.index in unread else 1.0,
        )
        middle = (start + end) / 2
        if named:
            words, at = f"{r.index}  {r.cell}", (middle, 0.02 * fastest)
            axes.annotate(words, at, rotation=90, ha="center", va="bottom", fontsize=SMALL)
        elif len(cells) <= _MOST_MARKED:
            axes.plot(middle, 0.05 * fastest, **_marked(styles[r.arm]))
        if not named and len(cells) <= _MOST_NUMBERED:
            axes.annotate(
                str(r.index),
                (middle, height),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=SMALL - 1,
            )
    axes.set_ylim(0, fastest * 1.12)
    axes.set_ylabel("tok/s")
    ran = {r.arm for r in cells}
    arms = {} if named else {arm: s for arm, s in styles.items() if arm in ran}
    head(axes, "", _legend(arms, verdict, cells, out, unread), 6)


def _legend(
    arms: Mapping[str, ArmStyle],
    verdict: CampaignVerdict,
    cells: Sequence[CellRecord],
    out: Collection[int],
    unread: Collection[int],
) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Line2D([], [], color=s.colour, linewidth=8, label=arm, **_marked(s))
        for arm, s in arms.items()
    ]
    if any(r.index in out for r in cells):
        why = "pair left out" if verdict.pairs else "contaminated"
        handles.append(Patch(facecolor="white", edgecolor=INK, hatch="////", label=why))
    if unread:
        handles.append(Patch(facecolor=INK, alpha=0.3, label="pale: no verdict rests on it"))
    if any(r.status != "ok" for r in cells):
        handles.append(
            Patch(facecolor="white", edgecolor=FAINT, hatch="xx", label="did not end well")
        )
    return handles


def _marked(style: ArmStyle) -> dict[str, Any]:
    """The arm's marker, which a print in grey needs."""
    return {
        "marker": style.marker,
        "markersize": 4,
        "markerfacecolor": "white",
        "markeredgecolor": INK,
        "markeredgewidth": 0.6,
    }


def _left_out(verdict: CampaignVerdict) -> set[int]:
    """Cells of replaced or confounded pairs; without pairs, the contaminated ones."""
    if not verdict.pairs:
        return {c.index for c in verdict.cells if c.status == "contaminated"}
    return {
        index
        for p in verdict.pairs
        if p.status in ("replaced", "confounded")
        for index in (*p.baseline_cells, *p.candidate_cells)
    }


def _unread(verdict: CampaignVerdict, cells: Sequence[CellRecord]) -> set[int]:
    """Cells that no verdict rests on, where one does rest on some."""
    read = {index for v in verdict.verdicts for index in v.cells_used}
    return {r.index for r in cells} - read if read else set()


# --- what the device showed ----------------------------------------------------------------------


def _panels(
    cells: Sequence[CellRecord],
    spans: Sequence[tuple[float, float]],
    clock: _Clock,
    device: Mapping[int, DeviceCourse],
) -> list[_Panel]:
    """Only those of which something was recorded."""
    at = _Moments(cells, spans, clock, device)
    sensor = cpu_sensor([state for _, state in states_in_order(cells)])
    temperatures = [
        at.curve(f"CPU ({sensor.type or sensor.zone})", sensor.read, _zone(sensor.zone)),
        at.curve("battery", lambda s: s.battery.temp_c if s.battery else None),
    ]
    clusters = sorted({p for r in cells for s in (r.entry, r.exit) for p in caps_khz(s)})
    caps = [at.curve(p, _cap(p), _course_cap(p), per=1e6) for p in clusters]
    memory = at.curve(
        "MemAvailable", lambda s: s.mem_available_bytes, lambda c: c.mem_available_bytes, per=_GIB
    )
    found = [
        _Panel("frequency\ncap, GHz", _known(caps)),
        _Panel("temperature,\n°C", _known(temperatures)),
        _Panel("compute\nprobe, ms", _known([at.probes("compute_ms")])),
        _Panel("read probe,\nms", _known([at.probes("read_ms")])),
        _Panel("memory\navailable, GiB", _known([memory])),
    ]
    return [p for p in found if p.curves]


def _known(curves: Iterable[Curve]) -> tuple[Curve, ...]:
    return tuple(c for c in curves if len(c[1]))


def _cap(cluster: str) -> Callable[[DeviceState], float | None]:
    return lambda state: caps_khz(state).get(cluster)


def _course_cap(cluster: str) -> Callable[[DeviceCourse], Array | None]:
    return lambda course: course.caps_khz.get(cluster)


def _zone(zone: str | None) -> Callable[[DeviceCourse], Array | None]:
    return lambda course: None if zone is None else course.temps_c.get(zone)


@dataclass(frozen=True)
class _Moments:
    """Values at the entry of every cell, while it ran, and at its exit."""

    cells: Sequence[CellRecord]
    spans: Sequence[tuple[float, float]]
    clock: _Clock
    device: Mapping[int, DeviceCourse]

    def curve(
        self,
        label: str,
        of_state: Callable[[DeviceState], float | None],
        of_course: Callable[[DeviceCourse], Array | None] = lambda course: None,
        per: float = 1.0,
    ) -> Curve:
        times: list[float] = []
        values: list[float] = []

        def add(at: float, state: DeviceState | None) -> None:
            value = None if state is None else of_state(state)
            if state is not None and value is not None:
                timed = self.clock.zero_s is not None and state.unix_s is not None
                times.append(self.clock.at(state.unix_s or 0.0) if timed else at)
                values.append(value / per)

        for r, (start, end) in zip(self.cells, self.spans, strict=True):
            add(start, r.entry)
            course = self.device.get(r.index)
            sampled = None if course is None else of_course(course)
            if course is not None and sampled is not None:
                kept = np.isfinite(sampled)
                times += list(self._while_it_ran(course, start, end)[kept])
                values += list(sampled[kept] / per)
            add(end, r.exit)
        return label, np.array(times), np.array(values)

    def _while_it_ran(self, course: DeviceCourse, start: float, end: float) -> Array:
        """Without a clock the course fills its cell."""
        if self.clock.zero_s is None:
            longest = max(float(course.t_s[-1]), 1e-9)
            return start + (end - start) * course.t_s / longest
        return np.minimum(start + course.t_s / self.clock.unit_s, end)

    def probes(self, name: str) -> Curve:
        times: list[float] = []
        values: list[float] = []
        for r, (start, end) in zip(self.cells, self.spans, strict=True):
            for at, probe in ((start, r.probe.before), (end, r.probe.after)):
                value = _of_probe(probe, name)
                if value is not None:
                    times.append(at)
                    values.append(value)
        return name, np.array(times), np.array(values)


def _of_probe(probe: ProbeResult | None, name: str) -> float | None:
    value = None if probe is None else getattr(probe, name)
    return None if value is None else float(value)


def _draw(axes: Axes, panel: _Panel) -> None:
    for i, (label, times, values) in enumerate(panel.curves):
        axes.plot(
            times,
            values,
            color=_SHADES[i % len(_SHADES)],
            linestyle=_DASHES[i % len(_DASHES)],
            linewidth=1.1,
            marker="." if len(times) <= 4 * _MOST_NUMBERED else "",
            markersize=3.5,
            label=label,
            # a cap stays until it is seen to have changed
            drawstyle="steps-post" if "cap" in panel.label else "default",
        )
    axes.set_ylabel(panel.label, fontsize=SMALL)
    axes.tick_params(labelsize=SMALL)
    axes.margins(y=0.18)
    if len(panel.curves) > 1 or "temperature" in panel.label:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _not_recorded(panels: Sequence[_Panel]) -> list[str]:
    shown = " ".join(p.label for p in panels)
    missing = [
        words
        for words, label in (
            ("frequency caps", "frequency"),
            ("temperatures", "temperature"),
            ("probes", "probe"),
            ("available memory", "memory"),
        )
        if label not in shown
    ]
    if "frequency" not in shown and "temperature" not in shown:
        missing[:2] = ["no sensors: frequency caps", "temperatures"]
    return [f"not recorded: {', '.join(missing)}"] if missing else []


def _rejected(cells: Sequence[CellRecord]) -> list[str]:
    sensor = cpu_sensor([state for _, state in states_in_order(cells)])
    return [f"sensor rejected: {r}" for r in sensor.rejected]
