"""A request to stop, from a signal to whoever waits. Touches this process's signal handlers."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class StopFlag:
    """A request to stop, heeded within a fraction of a second: set it from a signal handler."""

    def __init__(self) -> None:
        """Not requested."""
        self.reason: str | None = None

    def request(self, reason: str) -> None:
        """Ask the session to end; the first reason stands."""
        self.reason = self.reason or reason

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """While inside, SIGINT, SIGTERM and SIGHUP request a stop (main thread only).

        Under nohup, which has SIGHUP ignored, it stays ignored.
        """

        def handle(number: int, _frame: FrameType | None) -> None:
            self.request(signal.Signals(number).name)

        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
