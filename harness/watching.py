"""What is looked at about once a second while a cell runs. Reads through functions it is given."""

from __future__ import annotations

from collections.abc import Callable

from harness.engines import native
from harness.events import CellProgress, SessionEvent
from harness.records import PlannedCell

LOOK_S = 1.0


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
        """`telemetry`: the end of the engine's telemetry so far; `total` cells in the plan."""
        self._cell = cell
        self._total = total
        self._n_predict = n_predict
        self._telemetry = telemetry
        self._on_event = on_event
        self._clock = clock
        self._next_look = clock() + LOOK_S
        self._last: tuple[float, int] | None = None

    def look(self) -> None:
        """Emit CellProgress when it is time and there is something new."""
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        tokens = native.tokens_done(self._telemetry())
        if tokens is None:
            return
        rate = None
        if self._last is not None:
            then, before = self._last
            rate = (tokens - before) / (now - then)
        self._last = (now, tokens)
        self._on_event(CellProgress(self._cell, self._total, tokens, self._n_predict, rate))
