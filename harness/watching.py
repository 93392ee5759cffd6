"""What is looked at about once a second while a cell runs. Reads through functions it is given."""

from __future__ import annotations

from collections.abc import Callable

from harness.engines import native
from harness.events import CellProgress, SessionEvent
from harness.records import PlannedCell

LOOK_S = 1.0


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
    """Tells how far the engine is, from the tail of its telemetry."""

    def __init__(
        self,
        cell: PlannedCell,
        total: int,
        n_predict: int,
        *,
        telemetry: Callable[[], bytes],
        on_event: Callable[[SessionEvent], None],
        clock: Callable[[], float],
    ) -> None:
        """`telemetry`: the end of what the engine has told so far; `total` cells in the plan."""
        self._cell = cell
        self._total = total
        self._n_predict = n_predict
        self._telemetry = telemetry
        self._on_event = on_event
        self._clock = clock
        self._last: tuple[float, int] | None = None

    def look(self) -> None:
        """Emit CellProgress when there is something new."""
        now = self._clock()
        tokens = native.tokens_done(self._telemetry())
        if tokens is None:
            return
        rate = None
        if self._last is not None:
            then, before = self._last
            rate = (tokens - before) / (now - then)
        self._last = (now, tokens)
        self._on_event(CellProgress(self._cell, self._total, tokens, self._n_predict, rate))
