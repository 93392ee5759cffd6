"""The system's adb client as a program that is run. Touches processes; knows no device.

The client talks to a server of its own, which it starts where there is none, on the port that
ANDROID_ADB_SERVER_PORT or ADB_SERVER_SOCKET name; both are its own affair.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from harness.errors import DeviceError
from harness.targets.link import LinkLost

# Longest wait between two looks at a client's end and at the clock.
_STEP_S = 0.1
# For what is left in the pipes of a client that ended: whoever else holds them does not count.
_DRAIN_S = 0.5
# For the end of a client that has brought all that is wanted.
_END_S = 0.2

# Decides, while a client works, whether to go on: raises when not. Gets the bytes that came so far.
Tick = Callable[[int], None]
# Has everything come that is wanted?
Enough = Callable[[bytearray, bytearray], bool]


def find_client(adb: str) -> str:
    """Path of the client. Raises DeviceError with where to get one."""
    found = shutil.which(str(Path(adb).expanduser()) if adb.startswith("~") else adb)
    if found is None:
        raise DeviceError(
            f"target.adb: there is no program {adb!r} here; install it (Debian: apt-get install "
            "adb; else Google's Android SDK platform tools) or give its path"
        )
    return found


def without_chatter(text: str) -> str:
    """The client's own words, without its news of its server and its log."""
    return "\n".join(line for line in text.splitlines() if not _CHATTER.match(line))


def complaint(text: str) -> str:
    """What the client complains of, in one line; empty when it does not."""
    mismatch = _MISMATCH.search(text)
    if mismatch:
        return (
            f"two versions of adb are in use here, and end each other's server (the server's is "
            f"{mismatch[1]}, this client's {mismatch[2]}); use one of them: target.adb=PATH"
        )
    lines = [line.strip() for line in without_chatter(text).splitlines() if line.strip()]
    if not lines:
        return ""
    # it may go on with advice, for those who sit before it
    first = next((line for line in lines if _COMPLAINT.match(line)), lines[-1])
    return _COMPLAINT.sub("", first)


_CHATTER = re.compile(r"\* (daemon|failed to start|cannot start)|adb [VDIWEF] |- waiting for ")
_COMPLAINT = re.compile(r"adb: error: |error: |adb: ")
_MISMATCH = re.compile(r"adb server version \((\d+)\) doesn't match this client \((\d+)\)")


# Linux has it in util-linux; elsewhere a client outlives a harness that is killed.
_SETPRIV = shutil.which("setpriv")
_ENDS_WITH_US = (_SETPRIV, "--pdeathsig", "KILL", "--") if _SETPRIV else ()


@dataclass(frozen=True)
class Ended:
    """A client that ended, or was ended because all that is wanted had come (`code` None)."""

    code: int | None
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """All that it wrote."""
        return (self.stdout + b"\n" + self.stderr).decode(errors="replace")


def start(argv: Sequence[str | bytes], *, stderr: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """A client with pipes. In a session of its own: Ctrl-C at our terminal is not for it.

    It ends with the thread that started it, also when that is killed: else it would go on copying a
    model. (The server that it may start is no child of it by then.)
    """
    environment = {k: v for k, v in os.environ.items() if k != "ADB_TRACE"}
    # it tells the device, and draws its progress in place unless the terminal is dumb
    environment["TERM"] = "dumb"
    try:
        return subprocess.Popen(
            [*_ENDS_WITH_US, *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
            start_new_session=True,
        )
    except OSError as e:
        raise DeviceError(f"cannot start {os.fsdecode(argv[0])}: {e.strerror}") from e


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a client that may still run, and forget it."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):  # what was not yet written is not wanted
                pipe.close()


def exchange(
    argv: Sequence[str | bytes], *, stdin: bytes, tick: Tick, enough: Enough | None = None
) -> Ended:
    """Run a client to its end, or until `enough` has come; `tick` is called while it works."""
    process = start(argv)
    try:
        return _Pump(process, stdin).run(tick, enough)
    finally:
        end(process)


def run(argv: Sequence[str | bytes], timeout_s: float, late: str) -> Ended:
    """A short command of the client. Raises LinkLost, saying `late`, when it takes too long."""
    deadline = time.monotonic() + timeout_s

    def tick(_: int) -> None:
        if time.monotonic() > deadline:
            raise LinkLost(f"{late} for {timeout_s:g} s")

    return exchange(argv, stdin=b"", tick=tick)


class _Pump:
    """Moves bytes between us and one process, without ever waiting for a single pipe."""

    def __init__(self, process: subprocess.Popen[bytes], stdin: bytes) -> None:
        self._process = process
        self._left = memoryview(stdin)
        self._out, self._err = bytearray(), bytearray()
        self._selector = selectors.DefaultSelector()
        for pipe, into in ((process.stdout, self._out), (process.stderr, self._err)):
            self._register(cast(IO[bytes], pipe), selectors.EVENT_READ, into)
        self._register(cast(IO[bytes], process.stdin), selectors.EVENT_WRITE, None)

    def run(self, tick: Tick, enough: Enough | None) -> Ended:
        """See `exchange`."""
        ended_at: float | None = None
        with self._selector:
            while any(k.events == selectors.EVENT_READ for k in self._keys()):
                for key, _ in self._selector.select(_STEP_S):
                    self._move(key)
                if enough is not None and enough(self._out, self._err):
                    # to be killed at once would look to the device like a lost connection
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(_END_S)
                    return Ended(None, bytes(self._out), bytes(self._err))
                if self._process.poll() is not None:
                    ended_at = ended_at or time.monotonic()
                    if time.monotonic() > ended_at + _DRAIN_S:
                        break
                else:
                    tick(len(self._out) + len(self._err))
            while self._process.poll() is None:  # it closed its pipes, and goes on
                tick(len(self._out) + len(self._err))
                time.sleep(0.01)
        return Ended(self._process.returncode, bytes(self._out), bytes(self._err))

    def _register(self, pipe: IO[bytes], events: int, into: bytearray | None) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._selector.register(pipe, events, into)

    def _keys(self) -> list[selectors.SelectorKey]:
        return list(self._selector.get_map().values())

    def _move(self, key: selectors.SelectorKey) -> None:
        pipe = cast(IO[bytes], key.fileobj)
        if key.events == selectors.EVENT_READ:
            data = os.read(pipe.fileno(), 1 << 16)
            key.data.extend(data)
            if not data:
                self._selector.unregister(pipe)
            return
        try:
            if self._left:
                self._left = self._left[os.write(pipe.fileno(), self._left[: 1 << 16]) :]
        except OSError:  # it reads no more; its end says why
            self._left = self._left[:0]
        if not self._left:
            self._selector.unregister(pipe)
            with contextlib.suppress(OSError):
                pipe.close()
