"""A CPU quota over a program, through a cgroup made for it: for tests and benches of contention.

Needs the right to make cgroups (root, as a rule), in version 1 or 2. It changes nothing for other
processes: in version 2 a controller that is not switched on stays off, and that place is refused.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PREFIX = "moe-quota-"
PERIOD_US = 100_000


class QuotaUnavailableError(Exception):
    """One line: why no CPU quota can be had here."""


class _Place(NamedTuple):
    version: int
    path: Path  # a cgroup below which one may be made


class CpuQuota:
    """A cgroup whose processes can be held to a share of one core, and let go again."""

    def __init__(self, directory: Path, version: int) -> None:
        self.directory = directory
        self._version = version

    @property
    def entrance(self) -> Path:
        """A process that writes its number there is in."""
        return self.directory / "cgroup.procs"

    def hold(self, cores: float, period_us: int = PERIOD_US) -> None:
        """From now on its processes together get that share of one core; 0.5 is half of one."""
        quota_us = round(cores * period_us)
        if self._version == 1:
            (self.directory / "cpu.cfs_quota_us").write_text("-1")
            (self.directory / "cpu.cfs_period_us").write_text(str(period_us))
            (self.directory / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (self.directory / "cpu.max").write_text(f"{quota_us} {period_us}")

    def lift(self) -> None:
        if self._version == 1:
            (self.directory / "cpu.cfs_quota_us").write_text("-1")
        else:
            (self.directory / "cpu.max").write_text(f"max {PERIOD_US}")

    @property
    def held_back_s(self) -> float:
        """How long its processes were held back so far, summed over cores."""
        lines = (self.directory / "cpu.stat").read_text().splitlines()
        count = dict(line.split() for line in lines)
        if self._version == 1:
            return int(count["throttled_time"]) / 1e9
        return int(count["throttled_usec"]) / 1e6

    def wrapper(self, path: Path, program: Path, log: Path | None = None) -> Path:
        """A script at `path` that enters the cgroup and becomes the program.

        `log` grows by a line with each start.
        """
        lines = ["#!/bin/sh", f"echo $$ > {shlex.quote(str(self.entrance))} || exit 99"]
        if log is not None:
            lines.append(f"echo started >> {shlex.quote(str(log))}")
        lines.append(f'exec {shlex.quote(str(program))} "$@"')
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o755)
        return path


@contextlib.contextmanager
def cpu_quota() -> Iterator[CpuQuota]:
    """A cgroup of one's own, removed at the end, with what then still runs in it.

    Raises QuotaUnavailableError where none can be made.
    """
    refusals: list[str] = []
    for place in _places():
        _remove_stale(place.path)
        try:
            quota = _make(place)
        except OSError as e:
            refusals.append(f"{place.path}: {e.strerror or e}")
            continue
        try:
            yield quota
        finally:
            _remove(quota)
        return
    raise QuotaUnavailableError(
        "no CPU quota can be set here: "
        + ("; ".join(refusals) or "no cgroup hierarchy with a cpu controller is mounted")
        + " (needs root, and a cgroup that hands on the cpu controller)"
    )


def _places() -> list[_Place]:
    """One's own cgroup and those around it, outwards; version 1 where it has the controller."""
    found: dict[int, list[_Place]] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        root, point = left.split()[3:5]
        version = 1 if kind == "cgroup" and "cpu" in options.split(",") else 2
        if version == 2 and kind != "cgroup2":
            continue
        own = _own_cgroup(version)
        inside = own is not None and f"{own}/".startswith(f"{root.rstrip('/')}/")
        path = Path(point) / (own[len(root.rstrip("/")) :].lstrip("/") if own and inside else "")
        around = [path, *path.parents]
        found[version] = [_Place(version, p) for p in around if p.is_relative_to(point)]
    return found.get(1) or found.get(2, [])


def _own_cgroup(version: int) -> str | None:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(",") if version == 1 else number == "0":
            return path
    return None


def _make(place: _Place) -> CpuQuota:
    directory = place.path / f"{PREFIX}{os.getpid()}"
    directory.mkdir()
    quota = CpuQuota(directory, place.version)
    try:
        quota.hold(1.0)
        quota.lift()
    except OSError:
        directory.rmdir()
        raise
    return quota


def _remove(quota: CpuQuota) -> None:
    with contextlib.suppress(FileNotFoundError):
        quota.lift()  # a held process would be long in dying
        _empty(quota.directory)


def _empty(directory: Path) -> None:
    deadline = time.monotonic() + 60
    while directory.exists():
        # a stale one may be removed by somebody else at the same time
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for pid in (directory / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        with contextlib.suppress(OSError):
            directory.rmdir()
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{directory} could not be removed")
        time.sleep(0.05)


def _remove_stale(parent: Path) -> None:
    """What a script that was killed outright left behind."""
    for directory in parent.glob(f"{PREFIX}*"):
        pid = directory.name.removeprefix(PREFIX)
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            _empty(directory)
