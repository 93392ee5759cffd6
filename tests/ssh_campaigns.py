"""Campaigns over ssh that a test may do anything to, and what they have left here and there."""

from __future__ import annotations

import collections
import contextlib
import csv
import dataclasses
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ssh_parts import Sshd

from harness.journal import Event, load_records, read_journal
from harness.records import CellRecord

TESTS = Path(__file__).resolve().parent
DRIVER = TESTS / "device_driver.py"
# ending takes TERM, 2 s, KILL, on a machine that may be busy
ENDING_S = 60.0


def wait_for(condition: Callable[[], Any], seconds: float = 240.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come to be in time"
        time.sleep(0.02)
    return found


# what CI's shell may have ignored would stay ignored
AS_FROM_A_SHELL = ("env", "--default-signal=INT")


class Running:
    """A campaign's process, and all it says."""

    def __init__(self, argv: list[str], said: Path) -> None:
        self._said = said
        with said.open("wb") as f:
            self.process = subprocess.Popen(
                [*AS_FROM_A_SHELL, *argv],
                stdin=subprocess.DEVNULL,
                stdout=f,
                stderr=f,
                env={**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}"},
                cwd=TESTS.parent,
            )

    @property
    def said(self) -> str:
        return self._said.read_text()

    def ends(self, code: int, within_s: float = 900.0) -> float:
        """Waits for its end; how long that took. Nothing of Python's own is shown to a user."""
        began = time.monotonic()
        found = self.process.wait(within_s)
        assert found == code, self.said
        assert "Traceback" not in self.said
        assert "Exception" not in self.said
        return time.monotonic() - began

    def error(self) -> str:
        """The one line with which it ended."""
        (line,) = re.findall(r"^(?:harness: )?error: (.*)$", self.said, re.MULTILINE)
        return str(line)

    def until_paused(self) -> None:
        """By itself: see `pause_at`."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Bench:
    """A device behind an sshd, and campaigns on it. `prefix`: before what runs on the host."""

    def __init__(
        self, root: Path, sshd: Sshd, launcher: Path, prefix: tuple[str, ...] = ()
    ) -> None:
        self.root = root
        self.sshd = sshd
        self.launcher = launcher
        self.prefix = prefix
        self.device = root / "device"
        self.lock = root / "device.lock"
        self.running: list[Running] = []
        root.mkdir(parents=True, exist_ok=True)

    def model(self, size: int = 100_000) -> Path:
        """A file that is new to the device."""
        path = self.root / f"model-{os.urandom(4).hex()}.gguf"
        path.write_bytes(os.urandom(size))
        return path

    def start(
        self,
        model: Path,
        name: str = "campaign",
        *,
        arms: dict[str, Any] | None = None,
        n_predict: int = 4,
        wait_s: float = 0.05,
        wait_for_device_s: float = 0.0,
        time_limit_s: float = 600.0,
        pause_at: int | None = None,
        **target: object,
    ) -> Running:
        """Start a campaign, or go on with it."""
        directory = str(self.device)
        config = self.sshd.config(dir=directory, device_lock=str(self.lock), **target)
        asked = {
            "campaign": str(self.campaign(name)),
            "launcher": str(self.launcher),
            "model": str(model),
            "target": dataclasses.asdict(config),
            "arms": arms or {"baseline": {}, "half": {}, "off": {}},
            "n_predict": n_predict,
            "wait_s": wait_s,
            "wait_for_device_s": wait_for_device_s,
            "time_limit_s": time_limit_s,
            "pause_at": pause_at,
            "cache": str(self.root / "cache"),
        }
        return self._start(str(DRIVER), json.dumps(asked))

    def start_harness(self, *overrides: str) -> Running:
        """The harness as a user calls it."""
        return self._start("-m", "harness", *overrides)

    def _start(self, *words: str) -> Running:
        argv = [*self.prefix, sys.executable, *words]
        self.running.append(Running(argv, self.root / f"said-{len(self.running)}.txt"))
        return self.running[-1]

    # --- here ---

    def campaign(self, name: str = "campaign") -> Path:
        return self.root / "runs" / name

    def journal(self, name: str = "campaign") -> list[Event]:
        directory = self.campaign(name)
        return read_journal(directory) if (directory / "journal.jsonl").exists() else []

    def events(self, kind: str, name: str = "campaign") -> list[dict[str, Any]]:
        return [e.data for e in self.journal(name) if e.event == kind]

    def until(self, kind: str, index: int, name: str = "campaign") -> None:
        """Waits for an event of a cell; fails when the campaign has ended without."""

        def there() -> bool:
            found = any(e.get("index") == index for e in self.events(kind, name))
            assert found or self.running[-1].process.poll() is None, self.running[-1].said
            return found

        wait_for(there)

    def check_whole(
        self, name: str = "campaign", cells: int = 4, n_predict: int = 4
    ) -> list[CellRecord]:
        """No finished cell is lost, was run again or counts twice."""
        done: set[int] = set()
        for event in self.journal(name):
            if event.event == "cell_started":
                assert event.data["index"] not in done, "a finished cell was run again"
            if event.event == "cell_finished":
                assert event.data["index"] not in done, "a cell counts twice"
                done.add(event.data["index"])
        campaign = self.campaign(name)
        records = load_records(campaign)
        assert [r.index for r in records] == sorted(done) == list(range(cells))
        assert {r.status for r in records} == {"ok"}, [r.status_detail for r in records]
        assert len(list(campaign.glob("cells/*/record.json"))) == cells
        assert len({r.output_sha256 for r in records}) == 1
        for record in records:
            cell = campaign / "cells" / f"{record.index:02d}-{record.cell}"
            with (cell / "tokens.csv").open() as f:
                assert len(list(csv.DictReader(f))) == n_predict
            assert json.loads((cell / "result.json").read_text())["host_lost"] is False
            assert not list(cell.glob(".*"))
        return records

    def starts(self, name: str = "campaign") -> dict[int, int]:
        """How often each cell was started."""
        return collections.Counter(e["index"] for e in self.events("cell_started", name))

    # --- there ---

    def processes(self) -> list[str]:
        """What runs there of ours."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            line = b" ".join(words).decode("utf-8", "replace")
            if f"{self.device}/" in line and not line.startswith("sshd"):
                found.append(f"{process.name} {line}")
        return found

    def until_clean(self, within_s: float = ENDING_S) -> float:
        """Waits until nothing of ours runs there; how long that took."""
        began = time.monotonic()
        wait_for(lambda: not self.processes(), within_s)
        return time.monotonic() - began

    def is_free(self) -> bool:
        """Could another campaign have the device, and is nobody named as its owner?"""
        with self.lock.open("r+b") as f:
            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return f.read() == b""

    def check_left_clean(self) -> None:
        """Neither processes nor files of campaigns, nor a lock."""
        self.until_clean()
        wait_for(self.is_free, ENDING_S)  # a process has no name any more before it lets go
        assert [str(p) for p in (self.device / "campaigns").rglob("*")] == []
        assert list(self.device.rglob("*.part")) == []

    def close(self) -> None:
        for running in self.running:
            with contextlib.suppress(ProcessLookupError):
                running.kill()


def bench_on_loopback(root: Path, launcher: Path, stack: contextlib.ExitStack) -> Bench:
    """A device behind an sshd of its own, until `stack` ends."""
    sshd = Sshd(root / "sshd")
    stack.callback(sshd.stop)
    sshd.start()
    bench = Bench(root / "bench", sshd, launcher)
    stack.callback(bench.close)
    return bench
