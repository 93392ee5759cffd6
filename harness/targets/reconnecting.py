"""One attempt to connect again, in a thread: whoever waits for it can do something else meanwhile,
or give up. Touches a link."""

from __future__ import annotations

import threading

from harness.targets.link import Link


class Reconnecting(threading.Thread):
    """Runs `reconnect` of a link that nobody else uses meanwhile."""

    def __init__(self, link: Link) -> None:
        """Starts at once."""
        super().__init__(name="reconnect", daemon=True)
        self._link = link
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._abandoned = self._ended = False
        self.start()

    def run(self) -> None:
        """Connect; close what nobody waits for any more."""
        try:
            self._link.reconnect()
        except BaseException as e:
            self._failure = e
        with self._lock:
            self._ended = True
            if self._abandoned:
                self._link.close()

    def abandon(self) -> None:
        """Nobody waits for it; does not wait either."""
        with self._lock:
            self._abandoned = True
            if self._ended:
                self._link.close()

    def result(self) -> None:
        """Once it has ended: raises what `reconnect` has raised."""
        if self._failure is not None:
            raise self._failure
