"""Our sign of life to a device, and its to us: a thread on a channel to the launcher's `attend`.

Each beat renews the device's lease; when it runs out the device ends our programs by itself. Each
answer says whether a cell runs, and brings the ends of its files. A peer that does not answer is
lost after a while, on the monotonic clock, whether or not the connection is said to be there.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from harness.targets.link import Channel, LinkLost

PERIOD_S = 1.0
POLL_S = 0.1
# The program has to start there first, maybe on a device that is busy to its limit.
FIRST_S = 10.0


@dataclass(frozen=True)
class Pulse:
    """The device's last answer. `tails`: in the order in which they were asked for.

    `beat_error`: why our sign of life could not be noted there, so that the lease goes on from an
    earlier one.
    """

    running: bool
    boot_id: str
    tails: tuple[bytes, ...]
    beat_error: str | None = None


class Heart:
    """Beats until it is stopped, or the device is lost (`lost`: why)."""

    def __init__(
        self,
        channel: Channel,
        *,
        silent_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`silent_s`: so long may an answer take, once there was one. The channel is ours now."""
        self._channel = channel
        self._silent_s = silent_s
        self._clock = clock
        self._stop = threading.Event()
        self._fresh = threading.Event()
        self.pulse: Pulse | None = None
        self.lost: str | None = None
        self._thread = threading.Thread(target=self._run, name="heart", daemon=True)
        self._thread.start()

    def first_pulse(self) -> Pulse:
        """The first answer. Raises LinkLost when none comes."""
        self._fresh.wait(self._patience_s + 1.0)
        if self.pulse is None:
            raise LinkLost(self.lost or "the device does not answer")
        return self.pulse

    @property
    def _patience_s(self) -> float:
        return self._silent_s if self.pulse is not None else max(self._silent_s, FIRST_S)

    def stop(self) -> None:
        """Stop beating; the lease goes on from the last beat."""
        self._stop.set()
        self._thread.join(timeout=5.0)
        self._channel.close()

    def _run(self) -> None:
        try:
            self._beat()
        except LinkLost as e:
            self.lost = str(e)
        except Exception as e:  # whatever a transport's library raises in its own thread
            self.lost = f"{type(e).__name__}: {e}"
        self._fresh.set()

    def _beat(self) -> None:
        next_beat = heard = self._clock()
        waiting_since: float | None = None
        while not self._stop.is_set():
            now = self._clock()
            for line in self._channel.lines():
                self.pulse = _pulse(line)
                heard, waiting_since = now, None
                self._fresh.set()
            if waiting_since is not None and now - waiting_since > self._patience_s:
                raise LinkLost(f"the device has not answered for {now - heard:.0f} s")
            if now >= next_beat:
                self._channel.send(b"")
                waiting_since = now if waiting_since is None else waiting_since
                next_beat = now + PERIOD_S
            self._stop.wait(POLL_S)


def _pulse(line: bytes) -> Pulse:
    try:
        data = json.loads(line)
        tails = tuple(os.fsencode(tail) for tail in data["tails"])
        error = data.get("beat_error")
        beat_error = None if error is None else str(error)
        return Pulse(bool(data["running"]), str(data["boot_id"]), tails, beat_error)
    except (ValueError, KeyError, TypeError) as e:
        raise LinkLost(f"the launcher's answer is not understood ({e}): {line[:80]!r}") from e
