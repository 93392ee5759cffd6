"""Thermal sentinels: what goes beyond the limits of `session` while a cell runs.

The rows of device.csv (docs/launcher.md) are looked at in their order, and each limit is told of at
the first row beyond it. So the same comes of the finished file, which makes the record, and of its
tail while it grows, which is for the screen, and for ending the cell early.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from pathlib import PurePath

from harness.analysis.cpu_zones import cpu_rank, plausible
from harness.errors import DeviceError
from harness.readings import Excursion
from harness.session_config import SessionConfig
from harness.targets.target import Target

TAIL_BYTES = 8192  # seconds of samples, also of a device with eighty sensors
_HEADER = b"t_ms,"
_CAP, _TEMPERATURE = ".max_khz", ".temp_c"
_CALL_S = 10.0


def excursions(content: bytes, limits: SessionConfig) -> tuple[Excursion, ...] | None:
    """All of a device.csv; None where the limits are off, or nothing they are about was sampled."""
    if not limits.watches or not content.startswith(_HEADER):
        return None
    watch = Watch(limits)
    found = watch.feed(content)
    return found if watch.read_anything else None


class LiveSentinel:
    """Looks at the device.csv of a running cell."""

    def __init__(self, target: Target, table: PurePath, limits: SessionConfig) -> None:
        """`table`: device.csv on the target, which may not be there yet."""
        self._target, self._table = target, table
        self._watch = Watch(limits) if limits.watches else None

    def look(self) -> tuple[Excursion, ...]:
        """What has gone beyond a limit since the last look; about once a second is enough."""
        if self._watch is None:
            return ()
        tail = self._target.tail(self._table, TAIL_BYTES)
        found: tuple[Excursion, ...] = ()
        if tail and self._watch.wants_header and not tail.startswith(_HEADER):
            # The first looks came too late to see it. It is no reason to end a cell when it cannot
            # be had: what goes beyond is found in the finished file, too.
            with contextlib.suppress(DeviceError):
                head = ["head", "-n", "2", str(self._table)]
                found = self._watch.feed(self._target.call(head, timeout_s=_CALL_S).stdout)
        return found + self._watch.feed(tail)


@dataclass
class _Sensor:
    """A column of the table. `moved`: it has shown two values, so it is no set point."""

    name: str
    column: int
    start: float | None = None
    moved: bool = False


class Watch:
    """Rows in, excursions out, each limit once: once per cluster for caps."""

    def __init__(self, limits: SessionConfig) -> None:
        """Knows no columns until it was fed the table's first line."""
        self._limits = limits
        self._columns = 0
        self._temperatures: list[_Sensor] = []
        self._caps: list[_Sensor] = []
        self._last_ms = -math.inf
        self._told: set[tuple[str, str]] = set()

    @property
    def wants_header(self) -> bool:
        """It was not fed the beginning of the table yet."""
        return self._columns == 0

    @property
    def read_anything(self) -> bool:
        """At least one sensor that a limit is about had a reading."""
        limits = self._limits
        temperatures = limits.cpu_temp_max_c is not None or limits.cpu_temp_rise_c is not None
        used = [*(self._temperatures if temperatures else ())]
        used += self._caps if limits.cap_drop_pct is not None else ()
        return any(sensor.start is not None for sensor in used)

    def feed(self, part: bytes) -> tuple[Excursion, ...]:
        """The table's beginning, or a later part, cut anywhere; rows it had before do not count."""
        lines = part.split(b"\n")
        del lines[-1]  # not whole yet, or empty
        if part.startswith(_HEADER) and lines:
            if self.wants_header:
                self._read_header(lines[0].decode(errors="replace"))
            del lines[0]
        else:
            lines = lines[1:]  # the first one may be the rest of a row
        if self.wants_header:
            return ()
        return tuple(e for line in lines for e in self._row(line))

    def _read_header(self, line: str) -> None:
        names = line.split(",")
        self._columns = len(names)
        zones: dict[int, list[_Sensor]] = {}
        for column, name in enumerate(names):
            if name.endswith(_CAP):
                self._caps.append(_Sensor(name.removesuffix(_CAP), column))
            if name.endswith(_TEMPERATURE):
                zone = name.removesuffix(_TEMPERATURE)
                rank = cpu_rank(zone.partition(".")[2])
                if rank is not None:
                    zones.setdefault(rank, []).append(_Sensor(zone, column))
        if zones:
            self._temperatures = zones[min(zones)]

    def _row(self, line: bytes) -> list[Excursion]:
        cells = line.split(b",")
        t_ms = _number(cells[0])
        if len(cells) != self._columns or t_ms is None or t_ms <= self._last_ms:
            return []
        self._last_ms = t_ms
        limits, found = self._limits, []
        for sensor in self._temperatures:
            value = plausible(_number(cells[sensor.column]))
            if value is None or not _has_moved(sensor, value):
                continue
            start = sensor.start if sensor.start is not None else value
            if limits.cpu_temp_max_c is not None and value > limits.cpu_temp_max_c:
                limit = limits.cpu_temp_max_c
                found.append(Excursion(t_ms, "cpu_temp_max", sensor.name, value, limit, start))
            rise_c = limits.cpu_temp_rise_c
            if rise_c is not None and value > start + rise_c:
                limit = start + rise_c
                found.append(Excursion(t_ms, "cpu_temp_rise", sensor.name, value, limit, start))
        # one of a kind: the hottest of the sensors that went beyond in the same row
        found.sort(key=lambda e: e.limit - e.value)
        for sensor in self._caps:
            value = _number(cells[sensor.column])
            if value is None or limits.cap_drop_pct is None:
                continue
            _has_moved(sensor, value)
            start = sensor.start if sensor.start is not None else value
            limit = start * (1 - limits.cap_drop_pct / 100)
            if value < limit:
                found.append(Excursion(t_ms, "cap_drop", sensor.name, value, limit, start))
        return [e for e in found if self._is_news(e)]

    def _is_news(self, e: Excursion) -> bool:
        key = (e.what, e.sensor if e.what == "cap_drop" else "")
        if key in self._told:
            return False
        self._told.add(key)
        return True


def _has_moved(sensor: _Sensor, value: float) -> bool:
    """Notes the reading; whether it, or an earlier one, differs from the first."""
    if sensor.start is None:
        sensor.start = value
    sensor.moved = sensor.moved or value != sensor.start
    return sensor.moved


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
