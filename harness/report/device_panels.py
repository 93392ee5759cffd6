"""Where cells and device samples are on a campaign's time axis, for plots and the report. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.device_course import DeviceCourse
from harness.analysis.device_state import caps_khz, cpu_sensor, states_in_order
from harness.analysis.series import Array
from harness.readings import DeviceState, ProbeResult
from harness.records import CellRecord
from harness.verdicts import CampaignVerdict

_GIB = 2**30
# a curve, its times and values; one of several in a panel
Curve = tuple[str, Array, Array]


@dataclass(frozen=True)
class Panel:
    label: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class Clock:
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


def clock_of(cells: Sequence[CellRecord]) -> Clock:
    starts = [r.started_unix_s for r in cells if r.started_unix_s is not None]
    if len(starts) < len(cells):
        return Clock(None)
    ends = [r.ended_unix_s for r in cells if r.ended_unix_s is not None]
    lasted_s = max(starts + ends) - min(starts)
    unit = "seconds" if lasted_s < 180 else "minutes" if lasted_s < 3 * 3600 else "hours"
    return Clock(min(starts), unit)


def left_out(verdict: CampaignVerdict) -> set[int]:
    """Cells of replaced or confounded pairs; without pairs, the contaminated ones."""
    if not verdict.pairs:
        return {c.index for c in verdict.cells if c.status == "contaminated"}
    return {
        index
        for p in verdict.pairs
        if p.status in ("replaced", "confounded")
        for index in (*p.baseline_cells, *p.candidate_cells)
    }


def unread_cells(verdict: CampaignVerdict, cells: Sequence[CellRecord]) -> set[int]:
    """Cells that no verdict rests on, where one does rest on some."""
    read = {index for v in verdict.verdicts for index in v.cells_used}
    return {r.index for r in cells} - read if read else set()


# --- what the device showed ----------------------------------------------------------------------


def device_panels(
    cells: Sequence[CellRecord],
    spans: Sequence[tuple[float, float]],
    clock: Clock,
    device: Mapping[int, DeviceCourse],
) -> list[Panel]:
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
        Panel("frequency\ncap, GHz", _known(caps)),
        Panel("temperature,\n°C", _known(temperatures)),
        Panel("compute\nprobe, ms", _known([at.probes("compute_ms")])),
        Panel("read probe,\nms", _known([at.probes("read_ms")])),
        Panel("memory\navailable, GiB", _known([memory])),
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
    clock: Clock
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


def not_recorded(panels: Sequence[Panel]) -> list[str]:
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


def rejected_sensors(cells: Sequence[CellRecord]) -> list[str]:
    sensor = cpu_sensor([state for _, state in states_in_order(cells)])
    return [f"sensor rejected: {r}" for r in sensor.rejected]
