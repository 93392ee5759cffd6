"""What is looked at about once a second while a cell runs. Reads through functions it is given."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from harness.device.live import LiveDevice, LiveMemory
from harness.engines import native
from harness.events import CellProgress, LiveReadings, SessionEvent
from harness.planned import PlannedCell

LOOK_S = 1.0
# Over so many looks the live rate is made: an engine of half a token per second would else read
# 0 and 1 in turns.
RATE_LOOKS = 5

# the end of a file as it is known now; nothing where it is not there yet
Tail = Callable[[], bytes]


class EverySecond:
    """Calls what it was given, at most once a second, the first time after one."""

    def __init__(self, clock: Callable[[], float], *looks: Callable[[], None]) -> None:
        """`looks` may raise; what comes after is then not called."""
        self._clock = clock
        self._looks = looks
        self._next = clock() + LOOK_S

    def look(self) -> None:
        """Call them, if it is time."""
        if self._clock() >= self._next:
            self._next = self._clock() + LOOK_S
            for look in self._looks:
                look()


class Progress:
    """Tells how far the engine is, and how the device does, from the tails of their files."""

    def __init__(
        self,
        cell: PlannedCell,
        total: int,
        n_predict: int,
        *,
        telemetry: Tail,
        device: Tail,
        samples: Tail,
        on_event: Callable[[SessionEvent], None],
        clock: Callable[[], float],
    ) -> None:
        """The files' ends, the engine's and the launcher's; `total` cells in the plan."""
        self._cell = cell
        self._total = total
        self._n_predict = n_predict
        self._telemetry, self._device_tail, self._samples = telemetry, device, samples
        self._on_event = on_event
        self._clock = clock
        self._device, self._memory = LiveDevice(), LiveMemory()
        self._seen: deque[tuple[float, int]] = deque(maxlen=RATE_LOOKS + 1)

    def look(self) -> None:
        """Emit CellProgress."""
        now = self._clock()
        done = native.how_far(self._telemetry())
        if done.tokens is not None:
            self._seen.append((now, done.tokens))
        self._on_event(
            CellProgress(
                self._cell,
                self._total,
                done.tokens,
                self._n_predict,
                self._rate(),
                done.scored,
                self._readings(),
            )
        )

    def _rate(self) -> float | None:
        if len(self._seen) < 2:
            return None
        (then, before), (now, tokens) = self._seen[0], self._seen[-1]
        return (tokens - before) / (now - then)

    def _readings(self) -> LiveReadings:
        self._device.feed(self._device_tail())
        self._memory.feed(self._samples())
        return LiveReadings(
            self._device.cpu_temp_c,
            self._device.moved_caps,
            self._memory.anon_bytes,
            self._memory.peak_bytes,
        )
