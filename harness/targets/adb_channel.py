"""A program on a device that goes on, with its standard input and output here.

Touches one process of the adb client, and one thread that reads from it.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from typing import IO, cast

from harness.targets.adb_client import complaint, end, start
from harness.targets.link import LinkLost

# Between the end of its input and its own end; a program of ours needs far less.
_GRACE_S = 0.5
# The pipe holds 64 KiB, so that lines of ours wait only behind a client that is stuck.
_TAKES_S = 5.0


class AdbChannel:
    """See `Channel`."""

    def __init__(self, argv: Sequence[str | bytes], prefix: bytes, device: str) -> None:
        """Starts the client; `prefix` goes to its standard input before all lines."""
        self._device = device
        # a file, not a pipe: nobody has to read it, and there is never much in it
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = start(argv, stderr=self._errors.fileno())
        self._lines: list[bytes] = []
        self._lock = threading.Lock()
        self._told = self.is_closed = False
        self._reader = threading.Thread(target=self._read, name=f"adb {device}", daemon=True)
        self._reader.start()
        self._stdin = cast(IO[bytes], self._process.stdin)
        os.set_blocking(self._stdin.fileno(), False)
        if prefix:
            self._write(prefix)

    def send(self, line: bytes) -> None:
        """See `Channel`."""
        self._write(line + b"\n")

    def lines(self) -> list[bytes]:
        """See `Channel`."""
        ended = not self._reader.is_alive()  # before the lines are taken: it adds none after that
        with self._lock:
            taken, self._lines = self._lines, []
        if taken or not ended or self._told:
            return taken
        self._told = True
        raise self._lost()

    def close(self) -> None:
        """See `Channel`."""
        if self.is_closed:
            return
        self.is_closed = True
        with contextlib.suppress(OSError):
            self._stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        self._process.kill()
        self._reader.join(_GRACE_S)
        if not self._reader.is_alive():  # else it is the thread's to close
            end(self._process)
        self._process.wait()
        self._told = True
        self._errors.close()

    def _read(self) -> None:
        """Takes whole lines; the rest after the last newline was never finished."""
        with contextlib.suppress(OSError, ValueError):
            for line in cast(IO[bytes], self._process.stdout):
                if line.endswith(b"\n"):
                    with self._lock:
                        self._lines.append(line[:-1])

    def _write(self, data: bytes) -> None:
        """Raises LinkLost, also when the client passes nothing on and its pipe is full."""
        left = memoryview(data)
        try:
            while left:
                _, ready, _ = select.select([], [self._stdin], [], _TAKES_S)
                if not ready:
                    raise LinkLost(f"{self._device} takes no more input")
                left = left[os.write(self._stdin.fileno(), left) :]
        except (OSError, ValueError) as e:  # closed at its end, or by us
            raise self._lost() from e

    def _lost(self) -> LinkLost:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        said = ""
        with contextlib.suppress(OSError, ValueError):
            self._errors.seek(0)
            said = complaint(self._errors.read(1 << 16).decode(errors="replace"))
        return LinkLost(
            f"the connection to {self._device} broke: {said or 'the program there, or adb, ended'}"
        )
