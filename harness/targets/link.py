"""What a transport to a device can do; ssh and adb are two. Touches nothing.

A link carries bytes. What the bytes mean, and what to do when they stop coming, is decided above it
(`remote`). Paths of the device are text: they are the device's, not this machine's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.errors import DeviceError


class LinkLost(DeviceError):  # noqa: N818 - it may well come back
    """The connection is gone, or the device does not answer. `reconnect` may bring it back."""


@dataclass(frozen=True)
class Finished:
    """A program that ran to its end on the target; negative `code`: a signal ended it."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def last_words(self) -> str:
        """The last line of its errors, else of its output, else how it ended."""
        text = (self.stderr.strip() or self.stdout.strip()).decode(errors="replace")
        return text.splitlines()[-1] if text else f"exit code {self.code}"


class Channel(Protocol):
    """A program on the device whose standard input and output are here."""

    def send(self, line: bytes) -> None:
        """Write one line (without its newline). Raises LinkLost."""

    def lines(self) -> list[bytes]:
        """Whole lines that came since the last call; never waits.

        Raises LinkLost once, after the last line, when the program or the connection has ended.
        """

    def close(self) -> None:
        """Close its standard input and let it go; never raises."""


class Call(Protocol):
    """`Link.call`, by itself: for those who need no more than to run short programs."""

    def __call__(self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Finished:
        """See `Link.call`."""


# bytes so far, bytes in all
OnBytes = Callable[[int, int], None]


class Link(Protocol):
    """A connection to one device. Every method raises LinkLost when it breaks meanwhile.

    Used by one thread at a time.
    """

    def call(self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Finished:
        """Run a short program; every argument arrives as it is, whatever is in it.

        Raises DeviceError when it does not end in time.
        """

    def open(self, argv: Sequence[str]) -> Channel:
        """Start a program that goes on; its standard error is dropped."""

    def put(self, source: Path, destination: str, on_bytes: OnBytes | None = None) -> None:
        """Copy a file there, whose directory exists. What is there already of it is kept where the
        transport can go on from it: check the content afterwards.

        Raises DeviceError with the reason when it cannot be written (no space, no permission).
        """

    def get(self, source: str, destination: Path) -> None:
        """Copy one file from there. Raises DeviceError when it cannot be read."""

    def reconnect(self) -> None:
        """Connect again, once. Raises LinkLost when that fails now and may succeed later,
        DeviceError when it will not (a changed host key, not authorized)."""

    def close(self) -> None:
        """End the connection; never raises."""
