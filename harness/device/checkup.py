"""Looks at everything of a device that verdicts depend on. Goes through the target.

More than a campaign asks before its first cell (`inspection`): what is only needed by some settings
is tried, too. It leaves nothing there. What it all means is said in `doctor`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath

from harness.device.android_state import heat_status
from harness.device.deploy import Deployed
from harness.device.inspection import Inspection, inspect
from harness.device.launcher import read_state
from harness.device.machine import Storage, parse_cpuinfo, storage_behind, storage_of
from harness.errors import DeviceError
from harness.readings import DeviceState
from harness.targets.target import PageCache, Target

_CALL_S = 60.0
# any limit would do to see whether one holds: nothing of it is used up
_TRIED_LIMIT_BYTES = 256 * 2**20
# as much of the model is read to have something in the page cache that can be evicted
_READ_BYTES = 16 * 2**20
# sensors are looked at so often, but for no longer than that
_LOOKS = 10
_LEAST_LOOKS = 3
_LOOKING_S = 3.0
# where nothing can be written: `inspect` then tries no direct reads
_NOWHERE = PurePosixPath("/proc")


@dataclass(frozen=True)
class Limits:
    """Which memory limits can be had; None: could not be tried. `cgroup_version` 1 or 2."""

    data_enforced: bool | None
    data_reason: str | None
    cgroup_available: bool | None
    cgroup_reason: str | None
    cgroup_version: int | None


@dataclass(frozen=True)
class CheckUp:
    """`looks`: the sensors, several times within seconds.

    None: was not looked at, as it would have disturbed whoever measures there, or could not be.
    `counts_waiting`, `counts_steal`: does the kernel keep these figures?
    """

    inspection: Inspection
    looks: tuple[DeviceState, ...]
    work: Storage | None
    model: Storage | None
    limits: Limits | None
    evicted: PageCache | None
    virtual: bool | None
    counts_waiting: bool | None
    counts_steal: bool | None
    heat_status: str | None = None  # Android's word


def check_up(
    target: Target,
    deployed: Deployed,
    *,
    work_dir: PurePath,
    clock: Callable[[], float] = time.monotonic,
) -> CheckUp:
    """All of it, on a device that was claimed. `work_dir` exists there. Raises DeviceError."""
    launcher = deployed.build.launcher
    inspection = inspect(target, launcher, work_dir=work_dir, model_files=deployed.model_files)
    return CheckUp(
        inspection=inspection,
        looks=_looks(target, launcher, inspection, clock),
        work=_storage(target, work_dir),
        model=_storage(target, deployed.model_files[0]),
        limits=_limits(target, launcher),
        evicted=_evicted(target, deployed.model_files[0]),
        virtual=_virtual(target),
        counts_waiting=_counts_waiting(target),
        counts_steal=_counts_steal(target),
        heat_status=heat_status(target),
    )


def glance(
    target: Target,
    launcher: PurePath,
    *,
    work_dir: PurePath,
    clock: Callable[[], float] = time.monotonic,
) -> CheckUp:
    """What can be looked at beside a campaign that measures there: nothing is written or tried.

    `work_dir` need not exist. Raises DeviceError.
    """
    inspection = inspect(target, launcher, work_dir=_NOWHERE, grace_s=0.0)
    exists = target.call(["test", "-d", str(work_dir)], timeout_s=_CALL_S).code == 0
    return CheckUp(
        inspection=inspection,
        looks=_looks(target, launcher, inspection, clock),
        work=_storage(target, work_dir) if exists else None,
        model=None,
        limits=None,
        evicted=None,
        virtual=_virtual(target),
        counts_waiting=_counts_waiting(target),
        counts_steal=_counts_steal(target),
        heat_status=heat_status(target),
    )


def _looks(
    target: Target, launcher: PurePath, inspection: Inspection, clock: Callable[[], float]
) -> tuple[DeviceState, ...]:
    """The inspection's own two, and more where there is something to look at."""
    looks = [inspection.model.state, inspection.work.state]
    began = clock()
    while any(look.thermal for look in looks) and len(looks) < _LOOKS:
        if len(looks) >= _LEAST_LOOKS and clock() - began > _LOOKING_S:
            break
        looks.append(read_state(target, launcher))
    return tuple(looks)


def _storage(target: Target, path: PurePath) -> Storage:
    return storage_of(Path(path)) if target.id.kind == "local" else storage_behind(target, path)


def _said(target: Target, *argv: str) -> str:
    done = target.call(argv, timeout_s=_CALL_S)
    return done.stdout.decode(errors="replace") if done.code == 0 else ""


# --- limits --------------------------------------------------------------------------------------


def _limits(target: Target, launcher: PurePath) -> Limits:
    asked = ["--data-limit-bytes", str(_TRIED_LIMIT_BYTES)]
    asked += ["--cgroup-limit-bytes", str(_TRIED_LIMIT_BYTES)]
    # its exit code says whether all of them can be had; its answer, which
    done = target.call([str(launcher), "selftest", *asked], timeout_s=_CALL_S)
    try:
        answer = dict(json.loads(done.stdout))
    except (ValueError, TypeError):
        raise DeviceError(
            f"{launcher} selftest: did not answer as docs/launcher.md says; is it a moe-launcher?"
        ) from None
    return Limits(
        data_enforced=answer.get("data_limit_enforced"),
        data_reason=answer.get("detail"),
        cgroup_available=answer.get("cgroup_available"),
        cgroup_reason=answer.get("cgroup_reason"),
        cgroup_version=memory_cgroup_version(_said(target, "cat", "/proc/self/mountinfo")),
    )


def memory_cgroup_version(mountinfo: str) -> int | None:
    """Of the hierarchy that the launcher would use: 1 where it has the memory controller."""
    versions = set()
    for line in mountinfo.splitlines():
        kind, _, rest = line.partition(" - ")[2].partition(" ")
        if kind == "cgroup2":
            versions.add(2)
        elif kind == "cgroup" and "memory" in rest.rpartition(" ")[2].split(","):
            versions.add(1)
    return min(versions, default=None)


def _evicted(target: Target, file: PurePath) -> PageCache | None:
    """Of a piece of the model that was just read, how much stays when it is evicted."""
    blocks = _READ_BYTES // 2**20
    argv = ["dd", f"if={file}", "of=/dev/null", "bs=1048576", f"count={blocks}"]
    if target.call(argv, timeout_s=_CALL_S).code != 0:
        return None
    return target.evict_page_cache([file])


# --- what the kernel counts ----------------------------------------------------------------------


def _virtual(target: Target) -> bool | None:
    """Only x86 says so."""
    flags = parse_cpuinfo(_said(target, "cat", "/proc/cpuinfo")).flags
    return "hypervisor" in flags if "fpu" in flags else None


def _counts_waiting(target: Target) -> bool:
    """Three figures, all of them 0 where the kernel only pretends."""
    figures = _said(target, "cat", "/proc/self/schedstat").split()
    return len(figures) == 3 and any(figure != "0" for figure in figures)


def _counts_steal(target: Target) -> bool:
    first = _said(target, "cat", "/proc/stat").partition("\n")[0].split()
    return len(first) > 8 and first[0] == "cpu"
