"""What the tests of the launcher's verbs for a host share: short calls, cells that run detached."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from launcher_parts import file_text, is_alive, result_of, wait_for

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


class Board:
    """One directory as a device: a cell's lock, the device's lock and a beat file in it."""

    def __init__(self, launcher: Path, root: Path) -> None:
        self.launcher = launcher
        self.root = root
        self.cell, self.cell_lock = root / "cell", root / "cell.lock"
        self.device_lock, self.beat = root / "device.lock", root / "beat"
        self.log = root / "log.txt"
        self.pids: list[int] = []

    def call(self, *args: Any, code: int = 0, **popen: Any) -> dict[str, Any]:
        """The answer to a verb; no answer is one line on stderr."""
        done = subprocess.run(
            [self.launcher, *map(str, args)], capture_output=True, check=False, timeout=300, **popen
        )
        assert done.returncode == code, done
        if done.stdout:
            return json.loads(done.stdout)
        assert done.stderr.count(b"\n") == 1, done
        assert done.stderr.startswith(b"moe-launcher: "), done
        return {"error": done.stderr.decode().strip()}

    def run(self, *program: Any, options: tuple[Any, ...] = (), code: int = 0) -> dict[str, Any]:
        """Start a cell, detached."""
        own = ["--dir", self.cell, "--probe-s", 0, *options]
        own += ["--detach", "--log", self.log, "--lock", self.cell_lock]
        answer = self.call("run", *own, "--", *program, code=code)
        self.pids += [answer["pid"]] if "pid" in answer else []
        return answer

    def lease(self, seconds: float) -> tuple[Any, ...]:
        return ("--beat-file", self.beat, "--lease-s", seconds)

    def is_locked(self, lock: Path) -> bool:
        return self.call("locked", lock)["locked"]

    def result(self, seconds: float = 120) -> dict[str, Any]:
        """Of the cell, once its launcher has ended."""
        wait_for(lambda: not self.is_locked(self.cell_lock), seconds)
        return result_of(self.cell)

    def hold_args(self, token: str, lease_s: float, **places: Path) -> list[Any]:
        return [
            *("hold", "--lock", places.get("lock", self.device_lock)),
            *("--owner", json.dumps({"token": token, "host": "this one"})),
            *self.lease(lease_s),
            *("--while", self.cell_lock, "--log", places.get("log", self.root / "hold.txt")),
        ]

    def hold(self, token: str, lease_s: float = 30, code: int = 0, **places: Path) -> Any:
        answer = self.call(*self.hold_args(token, lease_s, **places), code=code)
        self.pids += [answer["pid"]] if answer.get("held") else []
        return answer

    def release(self, token: str) -> dict[str, Any]:
        return self.call("release", "--lock", self.device_lock, "--token", token)

    def end(self) -> None:
        for pid in self.pids:
            # it may just be ending by itself
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if is_alive(pid) and b"moe-launcher" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGTERM)
                    wait_for(lambda pid=pid: not is_alive(pid))


class Attendance:
    """A host's `attend`, with the answers as they come."""

    def __init__(self, board: Board, *options: Any) -> None:
        argv = [board.launcher, "attend", "--lock", board.cell_lock, "--beat-file", board.beat]
        self.process = subprocess.Popen(
            [*map(str, argv), *map(str, options)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def beat(self) -> dict[str, Any]:
        self.say(b"\n")
        return self.answer()

    def say(self, text: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def switches(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return sum(int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line)

    def children(self) -> list[int]:
        pid = self.process.pid
        return [int(p) for p in file_text(Path(f"/proc/{pid}/task/{pid}/children")).split()]

    def finish(self) -> int:
        """Close its stdin; its exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(timeout=120)
        self.process.stdout.close()
        return code


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """The lock held by this process."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def for_everyone(tmp_path: Path) -> Path:
    """pytest's directories are their owner's alone, and their parents, too."""
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == os.getuid() and path.stat().st_mode & 0o077 == 0:
            path.chmod(0o711)
    return tmp_path
