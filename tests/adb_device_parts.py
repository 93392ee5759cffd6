"""A host for made-up devices: the real adb client with a server and a home of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Adb:
    """The command, on one server and perhaps one device."""

    def __init__(self, home: Path, port: int, serial: str | None = None) -> None:
        self.home = home
        self.port = port
        self.serial = serial

    def on(self, serial: str) -> Adb:
        return Adb(self.home, self.port, serial)

    @property
    def environment(self) -> dict[str, str]:
        own = {"HOME": str(self.home), "ANDROID_ADB_SERVER_PORT": str(self.port)}
        return {k: v for k, v in os.environ.items() if not k.startswith(("ADB_", "ANDROID_"))} | own

    def argv(self, *words: Any) -> list[str]:
        return ["adb", *(["-s", self.serial] if self.serial else []), *map(str, words)]

    def run(
        self, *words: Any, stdin: bytes = b"", timeout_s: float = 300
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self.argv(*words),
            input=stdin,
            capture_output=True,
            env=self.environment,
            check=False,
            timeout=timeout_s,
        )

    def ok(self, *words: Any, **more: Any) -> str:
        done = self.run(*words, **more)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout.decode()

    def shell(self, command: str) -> str:
        """Its output and errors, in order; whatever the exit code."""
        return self.run("shell", f"{{ {command}; }} 2>&1").stdout.decode()

    def start(self, *words: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.argv(*words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )

    def connect(self, serial: str) -> None:
        """And wait until it is a device."""
        Adb(self.home, self.port).ok("connect", serial)
        self.wait_for_state(serial, "device")

    def connect_anew(self, serial: str) -> None:
        """A server that lost a device tries again by itself, every 10 s: this does not wait."""
        Adb(self.home, self.port).run("disconnect", serial)
        self.connect(serial)

    def states(self) -> dict[str, str]:
        lines = Adb(self.home, self.port).ok("devices").splitlines()[1:]
        return dict(line.split("\t") for line in lines if "\t" in line)

    def wait_for_state(self, serial: str, state: str | None, timeout_s: float = 120) -> None:
        """None: it is not listed any more."""
        deadline = time.monotonic() + timeout_s
        while (now := self.states().get(serial)) != state:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{serial} is {now}, not {state}")
            time.sleep(0.05)


@contextlib.contextmanager
def host(home: Path, port: int) -> Iterator[Adb]:
    """A server that ends with the context."""
    adb = Adb(home, port)
    adb.ok("start-server")
    try:
        yield adb
    finally:
        adb.run("kill-server")
