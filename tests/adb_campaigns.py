"""Campaigns of the harness as a user starts them, on a made-up phone; and what they leave behind.

A test waits for what the journal, the screen or the phone shows, does something to the phone, and
looks at what came of it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from adb_device import AdbDevice
from adb_device_parts import Adb, host
from ports import free_port

from harness.build.toolchain import find_toolchain, links_statically

REPO = Path(__file__).resolve().parents[1]
# what a phone runs that nobody measures on; the shell's own programs come and go
AT_REST = {"init", "adbd", "sdcard"}
# Four cells, each long enough to do something to it. Fixed performance is for tests of its own: the
# harness waits whether it takes.
SHORT = (
    "+experiment=matched_pair",
    "schedule.spacing_s=0.5",
    "schedule.probe_s=0.3",
    "cell.n_predict=512",
    "target.fixed_performance=false",
    "tracking=off",
)
# A cell several times slower than usual, on whatever machine: more experts a token than the model
# was made for. Some ten seconds, so that a lease can run out in it; its speed is no matter.
LONG = "{n_predict: 1900, engine: {expert_used: 16, cache_fraction: 0.6}}"
# what happens to these matters, not their speed: no sentinel, and next to no probes
SURVEY = (
    "+experiment=matched_pair",
    "design=survey",
    "schedule.spacing_s=0",
    "schedule.probe_s=0.1",
    "cell.n_predict=300",
    "target.fixed_performance=false",
    "tracking=off",
)
# of which the harness itself says that it has to wait for nothing else
BOUND_S = 240.0
# for what a phone ends by itself once its lease is over, and for what is told to end
LEFT_S = 60.0


def wait_for(what: str, is_so: Callable[[], Any], limit_s: float) -> None:
    """Without a harness to watch meanwhile."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
        time.sleep(0.05)


def quoted(text: str) -> str:
    """A value on the command line, whatever is in it: only what stands before quotes is escaped."""
    return '"' + re.sub(r'(\\*)("|$)', lambda m: m[1] * 2 + m[2].replace('"', '\\"'), text) + '"'


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@functools.cache
def _builds_for_phones() -> bool:
    """Whether that of this machine is the toolchain that a campaign on the phone would choose."""
    return links_statically(find_toolchain())


class Phone:
    """A made-up phone, an adb server of its own, and a place for campaigns."""

    def __init__(self, device: AdbDevice, adb: Adb, base: Path) -> None:
        self.device = device
        self.server = adb
        self.adb = adb.on(device.serial)
        self.runs = base / "runs"
        self.temporary = base / "tmp"
        self.temporary.mkdir()
        self._logs = base

    @property
    def environment(self) -> dict[str, str]:
        """With the engine's cache as everywhere, and temporary files that can be told apart."""
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        own = {"XDG_CACHE_HOME": cache, "TMPDIR": str(self.temporary), "COLUMNS": "300"}
        return self.adb.environment | own

    def start(self, *overrides: str, target: bool = True) -> Campaign:
        """One harness. Its target is this phone, unless the overrides say which."""
        where = ("target=adb", f"target.serial={self.device.serial}") if target else ()
        if _builds_for_phones():  # it need not be found out each time
            where = (*where, "build.toolchain=host")
        if launcher := os.environ.get("MOE_LAUNCHER"):
            overrides = (*overrides, f"engine.launcher={launcher}")
        runs = f"runs_dir={quoted(str(self.runs))}"
        return Campaign(self, [runs, *where, *overrides], self._logs)

    def resume(self, campaign: Campaign, *overrides: str) -> Campaign:
        """As the message says to do it."""
        runs = f"runs_dir={quoted(str(self.runs))}"
        words = [f"resume={campaign.directory.name}", runs, *overrides]
        return Campaign(self, words, self._logs)

    # what is left

    def processes(self) -> dict[int, str]:
        """Of the phone, without what belongs to it, and what its adbd has not reaped yet."""
        names = self.device.names().items()
        return {p: name for p, name in names if name not in AT_REST and is_alive(p)}

    def clients(self) -> list[str]:
        """Programs on this machine that talk to our server."""
        mark = f"ANDROID_ADB_SERVER_PORT={self.server.port}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if mark not in (process / "environ").read_bytes().split(b"\0"):
                    continue
                if b"fork-server" not in words:
                    found.append(b" ".join(words).decode(errors="replace"))
        return found

    def until_left(self) -> None:
        """Nothing of ours runs on the phone any more."""
        wait_for("the phone is left", lambda: self.processes() == {}, LEFT_S)

    def until_no_client(self) -> None:
        """Those of a harness that ended are killed by the kernel, each in its time."""
        wait_for("no client is left", lambda: self.clients() == [], LEFT_S)

    def results(self, index: int) -> list[dict[str, Any]]:
        """What launchers left of that cell on the phone."""
        there = self.device.path("/data/local/tmp/moe-harness/campaigns")
        paths = there.glob(f"*/cells/{index:02d}-*/result.json")
        return [json.loads(path.read_text()) for path in paths]

    def files(self, below: str = "/data/local/tmp") -> set[str]:
        """Names of the phone's files, without those that were installed for good."""
        listed = self.adb.shell(f"cd {below} && find . -type f").splitlines()
        return {name for name in listed if not name.startswith("./moe-harness/files/")}

    def sent(self, name: str) -> int:
        """Bytes of a file that is being installed."""
        installed = self.device.path("/data/local/tmp/moe-harness/files")
        with contextlib.suppress(OSError):
            return sum(path.stat().st_size for path in installed.glob(f"*/{name}"))
        return 0

    def is_as_before(self) -> None:
        """Nothing of ours runs there or here, or lies about; the phone's settings are its own.

        What was told to end may be about to; what nobody told would stay for longer.
        """
        deadline = time.monotonic() + 10.0
        while (left := (self.processes(), self.clients())) != ({}, []):
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
        lie = [path.name for path in self.temporary.iterdir()]
        assert set(lie) <= {f"adb.{os.getuid()}.log"}, lie  # the server's own
        files = self.files()
        assert files <= {"./moe-harness.lock"}, files
        assert self.device.path("/data/local/tmp/moe-harness.lock").read_text() == ""
        self.has_its_settings()

    def has_its_settings(self) -> None:
        assert not self.device.fixed_performance
        assert self.device.setting("stay_on_while_plugged_in") in (None, "0")

    def is_prepared(self) -> bool:
        stays = self.device.setting("stay_on_while_plugged_in") == "7"
        return stays and self.device.fixed_performance


class Campaign:
    """A harness that runs, or has run."""

    def __init__(self, phone: Phone, overrides: list[str], logs: Path) -> None:
        self._phone = phone
        count = len(list(logs.glob("*.out")))
        self._out, self._err = logs / f"{count}.out", logs / f"{count}.err"
        self._before = set(phone.runs.glob("*"))
        self._named = next((w[len("resume=") :] for w in overrides if w.startswith("resume=")), "")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "harness", *overrides],
                cwd=REPO,
                env=phone.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    # what it shows

    @property
    def out(self) -> str:
        return self._out.read_text(errors="replace")  # a letter may be half written

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    @property
    def said(self) -> str:
        """Everything, for a failed assertion."""
        return f"--- out\n{self.out}\n--- err\n{self.err}"

    @property
    def directory(self) -> Path:
        """Of the campaign."""
        if self._named:
            return self._phone.runs / self._named
        (found,) = set(self._phone.runs.glob("*")) - self._before
        return found

    @property
    def events(self) -> list[dict[str, Any]]:
        try:
            lines = (self.directory / "journal.jsonl").read_text().split("\n")[:-1]
        except (ValueError, FileNotFoundError):
            return []
        return [json.loads(line) for line in lines]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind."""
        return [e for e in self.events if e["event"] == kind]

    @property
    def records(self) -> list[dict[str, Any]]:
        """Of the finished cells, in order."""
        paths = sorted(self.directory.glob("cells/*/record.json"))
        return [json.loads(path.read_text()) for path in paths if ".aborted-" not in str(path)]

    @property
    def verdict(self) -> dict[str, Any]:
        verdict: dict[str, Any] = json.loads((self.directory / "verdict.json").read_text())
        return verdict

    # while it runs

    def until(self, what: str, is_so: Callable[[], Any], limit_s: float = BOUND_S) -> Any:
        """Wait for it. The harness must not have ended meanwhile."""
        deadline = time.monotonic() + limit_s
        while not (found := is_so()):
            assert self.process.poll() is None, f"ended before: {what}\n{self.said}"
            assert time.monotonic() < deadline, f"did not come: {what}\n{self.said}"
            time.sleep(0.02)
        return found

    def until_said(self, words: str, limit_s: float = BOUND_S, times: int = 1) -> None:
        """So often, all in all."""
        self.until(words, lambda: self.out.count(words) >= times, limit_s)

    def until_in_cell(self, index: int, tokens: int = 1, attempt: int = 1) -> None:
        """The engine of this cell, by its number, has made so many tokens on the phone.

        `attempt`: the how manieth time the cell is run; what the one before left is no sign of it.
        """

        def is_so() -> bool:
            starts = [e["index"] for e in self.of("cell_started")]
            if starts.count(index) < attempt:
                return False
            try:
                path = f"{self._work_dir(index)}/telemetry.jsonl"
                return self._phone.device.path(path).read_bytes().count(b"\n") > tokens
            except (ValueError, OSError):
                return False

        self.until(f"cell {index} is running", is_so)

    def _work_dir(self, index: int) -> str:
        there = self._phone.device.path("/data/local/tmp/moe-harness/campaigns")
        (found,) = (p for p in there.glob(f"*/cells/{index:02d}-*") if p.is_dir())
        return f"/data/local/tmp/moe-harness/campaigns/{found.relative_to(there)}"

    def until_waiting(self, index: int) -> None:
        """In the pause before this cell."""
        self.until(
            f"the pause before cell {index}",
            lambda: any(e["index"] == index for e in self.of("cell_waiting")),
        )

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    # its end

    def ended(self, limit_s: float = BOUND_S) -> int:
        """Its exit code. Where it does not end within the limit it hangs."""
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            raise AssertionError(f"did not end in {limit_s} s\n{self.said}") from None
        assert "Traceback" not in self.said, self.said
        return code

    def ended_well(self, limit_s: float = BOUND_S) -> None:
        """All cells of the plan are measured, each once."""
        assert self.ended(limit_s) == 0, self.said
        self.is_whole()

    def is_whole(self) -> None:
        cells = json.loads((self.directory / "plan.json").read_text())["cells"]
        finished = [e["index"] for e in self.of("cell_finished")]
        assert finished == [c["index"] for c in cells], self.said
        assert [(r["index"], r["status"]) for r in self.records] == [(i, "ok") for i in finished]
        assert len(self.of("campaign_finished")) == 1

    def one_line(self) -> str:
        """All that it said on stderr."""
        (line,) = self.err.splitlines()
        assert line.startswith("harness: "), line
        return line


@contextlib.contextmanager
def phone(base: Path, **of_device: Any) -> Iterator[Phone]:
    """A made-up phone that is connected."""
    home = base / "home"
    home.mkdir()
    with AdbDevice(**({"down_s": 1.0} | of_device)) as device, host(home, free_port()) as adb:
        adb.connect(device.serial)
        made = Phone(device, adb, base)
        try:
            yield made
        finally:
            for pid in _harnesses(adb.port):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _harnesses(port: int) -> list[int]:
    """Those that a failed test left: they have our server's port, and are no server."""
    mark = f"ANDROID_ADB_SERVER_PORT={port}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                words = (process / "cmdline").read_bytes()
                if b"harness" in words:
                    found.append(int(process.name))
    return found
