"""A request to stop, from a signal to whoever waits. Touches this process's signal handlers."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

from harness.errors import Interrupted

STOP_POLL_S = 0.2


class StopFlag:
    """A request to stop, heeded within a fraction of a second: set it from a signal handler."""

    def __init__(self) -> None:
        """Not requested."""
        self.reason: str | None = None

    def request(self, reason: str) -> None:
        """Ask the session to end; the first reason stands."""
        self.reason = self.reason or reason

    def heed(self) -> None:
        """Raises Interrupted when a stop was requested."""
        if self.reason is not None:
            raise Interrupted(self.reason)

    def nap(self, seconds: float) -> None:
        """Sleep, and heed a stop at once."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.heed()
            time.sleep(min(left, STOP_POLL_S))
        self.heed()

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
