"""What a cell's tables say while they grow, from their tails: for the screen. Touches nothing.

A tail is cut anywhere, and looks overlap: a row counts once, by its time. What a record says is
made of the whole files, by `collect`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from harness.analysis.cpu_zones import cpu_rank, plausible
from harness.events import MovedCap

SAMPLES = "samples.csv"
_HEADER = b"t_ms,"
_CAP, _TEMPERATURE = ".max_khz", ".temp_c"
# of samples.csv, whose columns are the same everywhere (docs/launcher.md); its tail for a second of
# rows seldom reaches back to their names
_SAMPLE_COLUMNS, _ANON = 10, 1
# a second of rows at the launcher's 20 ms
SAMPLES_TAIL_BYTES = 4096


class LiveDevice:
    """The tail of device.csv. Knows nothing where the first look came too late for the header:
    to ask for it would be a round trip to the device."""

    def __init__(self) -> None:
        """Nothing seen."""
        self._columns = 0
        self._zones: tuple[int, ...] = ()
        self._caps: dict[int, str] = {}
        self._start: dict[int, float] = {}
        self._now: dict[int, float] = {}
        self._moved: set[int] = set()  # one that never moves is a set point, no thermometer
        self._last_ms = -math.inf

    def feed(self, tail: bytes) -> None:
        """The file's end as it is now."""
        lines = tail.split(b"\n")
        if self._columns == 0:
            if not tail.startswith(_HEADER) or len(lines) < 2:
                return
            self._read_header(lines[0].decode(errors="replace").split(","))
        for cells in _new_rows(lines, self._columns, self._last_ms):
            self._last_ms = float(cells[0])
            for column in (*self._zones, *self._caps):
                value = _number(cells[column])
                if column in self._zones:
                    value = plausible(value)
                if value is None:
                    self._now.pop(column, None)
                    continue
                self._now[column] = value
                if value != self._start.setdefault(column, value):
                    self._moved.add(column)

    @property
    def cpu_temp_c(self) -> float | None:
        """Of the hottest of the sensors that follow the CPU best."""
        known = self._moved & self._now.keys()
        return max((self._now[zone] for zone in self._zones if zone in known), default=None)

    @property
    def moved_caps(self) -> tuple[MovedCap, ...]:
        """Those that are not what they were."""
        return tuple(
            MovedCap(name, self._start[c], self._now[c])
            for c, name in self._caps.items()
            if c in self._now and self._now[c] != self._start[c]
        )

    def _read_header(self, names: list[str]) -> None:
        self._columns = len(names)
        ranks: dict[int, list[int]] = {}
        for column, name in enumerate(names):
            if name.endswith(_CAP):
                self._caps[column] = name.removesuffix(_CAP)
            elif name.endswith(_TEMPERATURE):
                rank = cpu_rank(name.removesuffix(_TEMPERATURE).partition(".")[2])
                if rank is not None:
                    ranks.setdefault(rank, []).append(column)
        if ranks:
            self._zones = tuple(ranks[min(ranks)])


class LiveMemory:
    """The tail of samples.csv: the engine's anonymous memory."""

    def __init__(self) -> None:
        """Nothing seen."""
        self.anon_bytes: int | None = None
        self.peak_bytes: int | None = None
        self._last_ms = -math.inf

    def feed(self, tail: bytes) -> None:
        """The file's end as it is now."""
        for cells in _new_rows(tail.split(b"\n"), _SAMPLE_COLUMNS, self._last_ms):
            self._last_ms = float(cells[0])
            value = _number(cells[_ANON])  # a kernel before 4.5 leaves it empty
            if value is not None:
                self.anon_bytes = int(value)
                self.peak_bytes = max(self.peak_bytes or 0, int(value))


def _new_rows(lines: list[bytes], columns: int, last_ms: float) -> Iterator[list[bytes]]:
    """Whole rows after `last_ms`, of a tail whose first and last line may be cut."""
    for line in lines[1:-1]:
        cells = line.split(b",")
        t_ms = _number(cells[0])
        if len(cells) == columns and t_ms is not None and t_ms > last_ms:
            yield cells


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
