"""Files to and from a device with `adb push` and `adb pull`. Touches processes and local files.

adb tells how far it is to terminals only, and waits for ever for a device that is silent. So the
size of the copy is looked at where it grows; on the device, that look is also the sign of life.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from harness.errors import DeviceError
from harness.targets.adb_client import Ended, complaint, exchange
from harness.targets.link import LinkLost, OnBytes

# Looks at the size, while a copy is under way.
LOOK_S = 2.0
# A copy that has not grown for so long is not going to, even if the device answers: no storage
# pauses for that long.
STALLED_S = 60.0
# A local file that has not grown for so long makes us ask whether the device is there at all.
QUIET_S = 10.0


class Growth:
    """Watches a number that is to grow; `size` finds it out, or raises LinkLost."""

    def __init__(
        self, size: Callable[[], int | None], what: str, on_growth: Callable[[int], None]
    ) -> None:
        """`what` is said of when it does not grow."""
        self._size, self._what, self._on_growth = size, what, on_growth
        self._last: int | None = None
        self._looked_at = self._grew_at = time.monotonic()

    def tick(self, _: int) -> None:
        """Looks, when it is time to. Raises LinkLost."""
        now = time.monotonic()
        if now < self._looked_at + LOOK_S:
            return
        size = self._size()
        self._looked_at = time.monotonic()
        if size is not None and size != self._last:
            self._last, self._grew_at = size, self._looked_at
            self._on_growth(size)
        elif now > self._grew_at + STALLED_S:
            raise LinkLost(f"{self._what} has not gone on for {STALLED_S:.0f} s")

    @property
    def quiet_s(self) -> float:
        """Seconds since it grew last."""
        return time.monotonic() - self._grew_at


def push(
    argv: list[str | bytes],
    source: Path,
    destination: str,
    size_there: Callable[[], int | None],
    on_bytes: OnBytes | None,
) -> None:
    """Copy to exactly this path. `argv` is the client's, up to the device.

    Raises DeviceError with the device's reason, LinkLost for all else that stops it.
    """
    total = _local_size(source)

    def tell(size: int) -> None:
        if on_bytes is not None:
            on_bytes(min(size, total), total)

    growth = Growth(size_there, f"the copy to {shown(destination)}", tell)
    local = str(source.absolute())
    ended = exchange(
        [*argv, "push", local.encode("utf-8", "surrogateescape"), _bytes(destination)],
        stdin=b"",
        tick=growth.tick,
    )
    if ended.code != 0:
        raise _failure(ended, local, destination, f"cannot write {shown(destination)}")
    size = size_there()
    if _local_size(source) != total:
        raise DeviceError(f"{shown(str(source))} changed while it was copied")
    if size != total:
        raise LinkLost(f"{shown(destination)} has {size} bytes there, not {total}")
    tell(total)


def pull(
    argv: list[str | bytes],
    source: str,
    destination: Path,
    size_there: Callable[[], int | None],
    alive: Callable[[], None],
) -> None:
    """Copy one file from there, whole or not at all. `alive` raises LinkLost when nobody answers.

    Raises DeviceError with the reason, LinkLost for all else that stops it.
    """
    least = size_there()
    if least is None:
        raise DeviceError(f"cannot read {shown(source)} there: there is no such file")
    part = destination.with_name(destination.name + ".part")
    try:
        part.write_bytes(b"")
    except OSError as e:  # adb would say less
        raise DeviceError(f"cannot write {shown(str(destination))}: {e.strerror}") from e

    def size_here() -> int | None:
        if growth.quiet_s > QUIET_S:
            alive()
        with contextlib.suppress(OSError):
            return part.stat().st_size
        return None

    growth = Growth(size_here, f"the copy of {shown(source)}", lambda _: None)
    try:
        local = str(part.absolute())
        ended = exchange(
            [*argv, "pull", _bytes(source), local.encode("utf-8", "surrogateescape")],
            stdin=b"",
            tick=growth.tick,
        )
        if ended.code != 0:
            raise _failure(ended, local, source, f"cannot read {shown(source)}")
        size = part.stat().st_size
        if size != least and not least < size <= (size_there() or 0):  # a log may grow meanwhile
            raise LinkLost(f"{shown(source)} came with {size} of {least} bytes")
        part.replace(destination)
    except OSError as e:
        raise DeviceError(f"cannot write {shown(str(destination))}: {e.strerror}") from e
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _local_size(source: Path) -> int:
    try:
        with source.open("rb") as file:
            return os.fstat(file.fileno()).st_size
    except OSError as e:
        raise DeviceError(f"cannot read {shown(str(source))}: {e.strerror}") from e


def shown(path: str) -> str:
    """A path in a message of one line."""
    return path if path.isprintable() else repr(path)


def _failure(ended: Ended, local: str, remote: str, what: str) -> DeviceError:
    """The device's own reason, ours, or that the connection broke."""
    # names may hold anything, so they go before words are looked for
    text = ended.text.replace(local, "").replace(remote, "")
    _, marker, reason = text.rpartition("': remote ")
    if marker:
        return DeviceError(f"{what}: {_one_line(reason)}")
    if any(words in text for words in _NOT_THE_LINK):
        named = ended.text.replace(local, shown(local)).replace(remote, shown(remote))
        return DeviceError(complaint(named))
    return LinkLost(f"{what}: the connection broke: {complaint(text) or 'adb does not say why'}")


_NOT_THE_LINK = ("locally failed", "cannot lstat", "path too long", "cannot create", "cannot write")


def _one_line(reason: str) -> str:
    """adb may put the program's progress after it."""
    line = reason.strip().splitlines()[0] if reason.strip() else "adb does not say why"
    return line.removeprefix("couldn't create file: ")


def _bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")
