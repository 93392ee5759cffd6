"""Contamination made on purpose: an engine held to half a core now and then, and campaigns of it.

When it is held is drawn while the campaign runs, from the clock or from the mere fact that an
engine started; which cell of which arm that was, nothing here knows.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from quota_parts import CpuQuota

from harness.records import CellRecord

Chosen = Literal["time", "cells"]
POLL_S = 0.01


@dataclass(frozen=True)
class Draws:
    """To how much of a core, how often, and for how long.

    By time: exponential gaps and holds of these means. By cells: this share of them, each from its
    start or, as often, from somewhere within `late_s` after it, up to its end.
    """

    cores: float = 0.5
    gap_s: float = 20.0
    hold_s: float = 4.0
    share: float = 0.2
    late_s: tuple[float, float] = (0.3, 1.3)


class Throttler:
    """Holds and lifts a quota in a thread of its own, while it is entered as a context.

    `starts`: the log that `CpuQuota.wrapper` writes.
    """

    def __init__(
        self, quota: CpuQuota, starts: Path, chosen: Chosen, seed: int, draws: Draws | None = None
    ) -> None:
        self._losses: list[tuple[float, float]] = []  # seconds of the epoch, seconds held back
        self._quota = quota
        self._starts = starts
        self._draws = draws or Draws()
        self._random = random.Random(seed)  # noqa: S311
        self._stop = threading.Event()
        body = {"time": self._by_time, "cells": self._by_cells}[chosen]
        self._thread = threading.Thread(target=body, name="throttler")

    def __enter__(self) -> Self:
        self._starts.write_text("")
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._quota.lift()

    def lost_s(self, record: CellRecord) -> float:
        """How long the quota held this cell's engine back, by the cgroup's own count.

        A hold that left the engine more than it could use, because it waited for reads or for
        neighbours, takes nothing.
        """
        begun, ended = record.started_unix_s, record.ended_unix_s
        if begun is None or ended is None:
            return 0.0
        return sum(lost for at, lost in self._losses if begun <= at <= ended + POLL_S)

    def _by_time(self) -> None:
        while not self._stop.wait(self._random.expovariate(1 / self._draws.gap_s)):
            until = time.monotonic() + self._random.expovariate(1 / self._draws.hold_s)
            self._hold_until(lambda until=until: time.monotonic() >= until)

    def _by_cells(self) -> None:
        seen = 0
        while not self._stop.wait(POLL_S):
            started = self._count_starts()
            if started == seen:
                continue
            seen = started
            if self._random.random() >= self._draws.share:
                continue
            late = self._random.random() < 0.5
            if late and self._stop.wait(self._random.uniform(*self._draws.late_s)):
                return
            if self._count_starts() == seen:  # else it has ended already, and another began
                self._hold_until(lambda: not self._quota.entrance.read_text())

    def _count_starts(self) -> int:
        return self._starts.read_text().count("\n")

    def _hold_until(self, is_over: Callable[[], bool]) -> None:
        before = self._quota.held_back_s
        self._quota.hold(self._draws.cores)
        while not is_over() and not self._stop.wait(POLL_S):
            before = self._note(before)
        self._quota.lift()
        self._note(before)

    def _note(self, before: float) -> float:
        now = self._quota.held_back_s
        if now > before:
            self._losses.append((time.time(), now - before))
        return now
