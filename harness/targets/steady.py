"""A link on which things get done over its breaks: it is made again, for a while, and they are done
again. Waits through its caller."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from harness.errors import DeviceError, HarnessError, Interrupted
from harness.targets.link import Link, LinkLost
from harness.targets.reconnecting import Reconnecting
from harness.words import duration

T = TypeVar("T")

MAX_BACKOFF_S = 5.0
RECONNECT_POLL_S = 0.1
# so often in a row may the same thing be interrupted
MAX_INTERRUPTIONS = 20


class Steady:
    """Used by one thread. What it asks of its owner is replaced after it was made.

    `lost`: why the link is known to be gone, or None; `drop`: what goes with it; `take_up`: what
    was held before is held again, on the new connection (it raises LinkLost where that breaks, too,
    and returns what is to be said of the device, "restarted, and "); `after` it is connected.
    """

    def __init__(
        self,
        link: Link,
        name: str,
        *,
        reconnect_s: float,
        advice: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`reconnect_s`: so long is a break overcome. `advice`: what follows when it is not."""
        self.nap: Callable[[float], None] = time.sleep
        self.say: Callable[[str], None] = lambda _line: None
        self.lost: Callable[[], str | None] = lambda: None
        self.drop: Callable[[], None] = lambda: None
        self.take_up: Callable[[], str] = lambda: ""
        self.after: Callable[[], None] = lambda: None
        self.given_up: HarnessError | None = None
        self._link = link
        self._name = name
        self._reconnect_s = reconnect_s
        self._advice = advice
        self._clock = clock
        self._interruptions = 0

    def do(self, action: Callable[[], T]) -> T:
        """Do something on the link that may be done again; over every break, up to a limit.

        Raises DeviceError when the device stays away, then at once for whatever comes; Interrupted.
        """
        while True:
            if self.given_up is not None:
                raise self.given_up
            try:
                if (reason := self.lost()) is not None:
                    raise LinkLost(reason)
                result = action()
            except LinkLost as e:
                self._interruptions += 1
                if self._interruptions > MAX_INTERRUPTIONS:
                    raise DeviceError(
                        f"{self._name}: the connection broke {MAX_INTERRUPTIONS} times in a row "
                        f"({e}); what was measured is kept"
                    ) from e
                self._recover(str(e))
            else:
                self._interruptions = 0
                return result

    def gets_on(self) -> None:
        """What is being done is not where it was at the last break."""
        self._interruptions = 0

    def give_up(self, error: HarnessError) -> HarnessError:
        """Nothing more is tried: all that comes ends with this error."""
        self.given_up = error
        return error

    def _recover(self, reason: str) -> None:
        self.drop()
        began, backoff, told = self._clock(), 0.5, ""
        self.say(f"{self._name}: connection lost ({reason}); connecting again")
        while True:
            try:
                self._reconnect()
                found = self.take_up()
                break
            except LinkLost as e:
                away = self._clock() - began
                if away > self._reconnect_s:
                    raise self.give_up(
                        DeviceError(
                            f"{self._name}: no connection for {duration(away)}: {e}; {self._advice}"
                        )
                    ) from e
                if str(e) != told:  # it may be for the user to mend
                    told = str(e)
                    self.say(f"{self._name}: not yet: {told}")
                self.wait(backoff)
                backoff = min(2 * backoff, MAX_BACKOFF_S)
        self.say(f"{self._name}: {found}connected again after {duration(self._clock() - began)}")
        self.after()

    def _reconnect(self) -> None:
        """Connect again, once. In a thread: a stop is heeded while the network says nothing."""
        attempt = Reconnecting(self._link)
        try:
            while attempt.is_alive():
                self.wait(RECONNECT_POLL_S)
        except BaseException:
            attempt.abandon()
            raise
        attempt.result()

    def reconnect_within(self, seconds: float) -> None:
        """Connect again, once, if it takes no longer. Raises LinkLost."""
        attempt = Reconnecting(self._link)
        attempt.join(seconds)
        if attempt.is_alive():
            attempt.abandon()
            raise LinkLost(f"{self._name}: no connection within {seconds:g} s")
        attempt.result()

    def wait(self, seconds: float) -> None:
        """Nap; a stop is the end of all attempts, also of those to clean up there."""
        try:
            self.nap(seconds)
        except Interrupted as e:
            self.give_up(e)
            raise
