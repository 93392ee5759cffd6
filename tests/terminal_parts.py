"""A command in a terminal of its own, and what stands on its screen at any time."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyte

ROWS = 30
PATIENCE_S = 600.0


class Terminal:
    """xterm, as pyte plays it: what stands on the screen is cut when it becomes narrow.

    `raw`: all bytes that came out. Used as a context: the command ends with it.
    """

    def __init__(
        self, argv: Sequence[str], cwd: Path, *, columns: int = 100, env: Mapping[str, str]
    ) -> None:
        """`env`: beside that of this process, of which nothing about terminals is kept."""
        self.raw = b""
        self._screen = pyte.HistoryScreen(columns, ROWS, history=1000)
        self._stream = pyte.ByteStream(self._screen)
        self._master, slave = os.openpty()
        self._size(columns)
        ours = ("NO_COLOR", "COLUMNS", "LINES", "STY", "FORCE_COLOR", "COLORTERM")
        inherited = {k: v for k, v in os.environ.items() if k not in ours}
        self.settings = termios.tcgetattr(slave)
        self._process = subprocess.Popen(
            argv,
            cwd=cwd,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            # so that Ctrl-C is the terminal's
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
            env=inherited | {"TERM": "xterm-256color", "XTERM_VERSION": "1"} | env,
        )
        self._slave = slave

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        os.close(self._slave)
        if self._master >= 0:
            os.close(self._master)

    def hang_up(self) -> int:
        """The window is closed; what the command ends with then."""
        os.close(self._master)
        self._master = -1
        return self._process.wait(timeout=PATIENCE_S)

    @property
    def lines(self) -> list[str]:
        """What stands on the screen, top to bottom."""
        return [line.rstrip() for line in self._screen.display if line.strip()]

    @property
    def all_lines(self) -> list[str]:
        """The same, with what has scrolled away."""
        gone = [
            "".join(row[x].data for x in range(self._screen.columns)).rstrip()
            for row in self._screen.history.top
        ]
        return [line for line in gone if line] + self.lines

    @property
    def cursor(self) -> tuple[int, bool]:
        """The column it stands in, and whether it can be seen."""
        return self._screen.cursor.x, not self._screen.cursor.hidden

    def until(self, condition: Callable[[list[str]], bool]) -> list[str]:
        """Look on until the lines are as they shall be; those lines."""
        end = time.monotonic() + PATIENCE_S
        while not condition(self.lines):
            assert self._process.poll() is None or self._look(0), self.lines
            assert time.monotonic() < end, self.lines
            self._look(0.05)
        return self.lines

    def ended(self) -> int:
        """Look on until the command has ended; its exit code."""
        end = time.monotonic() + PATIENCE_S
        while self._process.poll() is None:
            assert time.monotonic() < end, self.lines
            self._look(0.05)
        while self._look(0):
            pass
        assert termios.tcgetattr(self._slave) == self.settings
        return self._process.returncode

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._master, keys)

    def signal(self, number: signal.Signals) -> None:
        """Send the command a signal."""
        self._process.send_signal(number)

    def resize(self, columns: int) -> None:
        """Another width; the kernel sends SIGWINCH."""
        self._screen.resize(ROWS, columns)
        self._size(columns)

    def _size(self, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))

    def _look(self, wait_s: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], wait_s)
        if not ready:
            return False
        data = os.read(self._master, 65536)
        self.raw += data
        self._stream.feed(data)
        return bool(data)
