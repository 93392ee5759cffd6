"""A link to this very machine, whose connection a test can cut: for what stands above links."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from harness.errors import DeviceError
from harness.targets.link import Finished, LinkLost, OnBytes


class LoopChannel:
    """A child process; `silent`: it goes on, but nothing of it arrives any more."""

    def __init__(self, link: LoopLink, argv: Sequence[str]) -> None:
        self._link = link
        self._process = subprocess.Popen(
            list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._came: list[bytes] = []
        self._lock = threading.Lock()
        self._ended = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not self._link.silent:
                with self._lock:
                    self._came.append(line.rstrip(b"\n"))
        self._ended = True

    def send(self, line: bytes) -> None:
        if self._link.silent:
            return
        self._link.check()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except OSError as e:
            raise LinkLost("channel closed") from e

    def lines(self) -> list[bytes]:
        with self._lock:
            came, self._came = self._came, []
        if not came and not self._link.silent and (self._ended or self._link.down):
            raise LinkLost("channel closed")
        return came

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()


class LoopLink:
    """`down`: every use fails. `silent`: channels are dead without saying so."""

    def __init__(self) -> None:
        self.down = False
        self.silent = False
        self.refuse_reconnects = 0
        self.calls: list[list[str]] = []
        self.puts: list[str] = []
        self._channels: list[LoopChannel] = []

    def check(self) -> None:
        if self.down:
            raise LinkLost("cut by the test")

    def cut(self) -> None:
        """The connection goes, and what ran on it loses its standard input."""
        self.down = True
        for channel in self._channels:
            channel.close()

    def call(self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Finished:
        self.check()
        self.calls.append(list(argv))
        try:
            done = subprocess.run(
                list(argv), input=stdin, capture_output=True, timeout=timeout_s, check=False
            )
        except FileNotFoundError:
            return Finished(127, b"", b"not found\n")
        self.check()
        return Finished(done.returncode, done.stdout, done.stderr)

    def open(self, argv: Sequence[str]) -> LoopChannel:
        self.check()
        channel = LoopChannel(self, argv)
        self._channels.append(channel)
        return channel

    def put(self, source: Path, destination: str, on_bytes: OnBytes | None = None) -> None:
        self.check()
        self.puts.append(destination)
        try:
            shutil.copyfile(source, destination)
        except OSError as e:
            raise DeviceError(f"{destination}: {e.strerror}") from e

    def get(self, source: str, destination: Path) -> None:
        self.check()
        shutil.copyfile(source, destination)

    def reconnect(self) -> None:
        if self.refuse_reconnects:
            self.refuse_reconnects -= 1
            raise LinkLost("refused by the test")
        self.down = self.silent = False

    def close(self) -> None:
        for channel in self._channels:
            channel.close()
