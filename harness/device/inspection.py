"""What a device has to say before a campaign: the launcher's verbs `inspect` and `digest`.

Looks twice, since a clock that is being set only shows between two looks; a second apart where
another engine is there, to see whether it is at work. What it all means for a campaign is said in
`suitability`.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, TypeVar

from harness.device.android_state import completed, throttling_in_words
from harness.device.launcher import ask
from harness.errors import DeviceError, UsageError
from harness.jsonable import from_json
from harness.readings import DeviceState
from harness.targets.target import Target

T = TypeVar("T")

LOOKS_APART_S = 1.0
# beyond this another engine takes what a cell would be measured with
BUSY_ENGINE_SHARE = 0.2
# an engine whose campaign was killed is ended by its launcher
GRACE_S = 15.0
# The environment names another time where others run engines beside ours, on purpose.
GRACE_ENV = "MOE_OTHER_ENGINES_S"
# /proc/PID/stat counts in hundredths of a second towards programs, whatever the kernel's own tick
_TICKS_PER_S = 100
_STAT_S = 10.0
# slow flash, hashed by a small core
_HASH_BYTES_PER_S = 20e6


@dataclass(frozen=True)
class DirState:
    """Of the filesystem that holds a directory."""

    path: str
    filesystem: str | None = None
    fuse: bool | None = None
    size_bytes: int | None = None
    free_bytes: int | None = None
    writable: bool | None = None


@dataclass(frozen=True)
class DirectIo:
    """Whether direct reads in a directory give the bytes of the file; None: could not be tried."""

    works: bool | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Process:
    pid: int
    name: str


@dataclass(frozen=True)
class Look:
    """The launcher's answer to `inspect --dir` (docs/launcher.md)."""

    dir: DirState
    machine: str | None = None
    kernel: str | None = None
    hostname: str | None = None
    page_bytes: int | None = None
    boot_id: str | None = None
    unix_s: float | None = None
    monotonic_ms: float | None = None
    direct_io: DirectIo = field(default_factory=DirectIo)
    other_engines: tuple[Process, ...] = ()
    sees_all_processes: bool | None = None
    state: DeviceState = field(default_factory=DeviceState)


@dataclass(frozen=True)
class OtherEngine:
    """`cpu_share`: of one core, between the two looks; None where the kernel does not tell."""

    pid: int
    name: str
    cpu_share: float | None

    @property
    def is_busy(self) -> bool:
        """It is at work now."""
        return self.cpu_share is not None and self.cpu_share > BUSY_ENGINE_SHARE


@dataclass(frozen=True)
class Inspection:
    """`model`: where the model lies, `work`: where the cells' files go, a second later.

    `clock_off_s`: the device's clock less this machine's, known to within `clock_error_s`;
    `clock_step_s`: how far it was set between the looks. `model_sha256`: None where not asked for.
    `throttling`: Android's own word for it, None where there is none to tell of.
    """

    model: Look
    work: Look
    engines: tuple[OtherEngine, ...]
    clock_off_s: float | None
    clock_error_s: float
    clock_step_s: float | None
    model_sha256: str | None
    throttling: str | None = None


def inspect(
    target: Target,
    launcher: PurePath,
    *,
    work_dir: PurePath,
    model_files: Sequence[PurePath] = (),
    model_bytes: int = 0,
    hash_model: bool = False,
    grace_s: float | None = None,
    roots: Sequence[str] = (),
    nap: Callable[[float], None] = time.sleep,
    wall: Callable[[], float] = time.time,
) -> Inspection:
    """Ask the launcher on the target. `work_dir` exists there.

    `hash_model`: read all of the model, for its hash. `grace_s`: so long an engine that is at work
    may take to end, by default as `grace` says. `roots`: options that show the launcher another
    /proc and /sys. Raises DeviceError where it does not answer, UsageError.
    """
    patience_s = grace() if grace_s is None else grace_s
    sha256 = None
    if hash_model and model_files:
        sha256 = _model_sha256(target, launcher, model_files, model_bytes)
    model_dir = model_files[0].parent if model_files else work_dir
    waited_s = 0.0
    while True:
        before = wall()
        first = _look(target, launcher, model_dir, roots)
        after = wall()
        pids = [p.pid for p in first.other_engines]
        used = _cpu_seconds(target, pids)
        if pids:
            nap(LOOKS_APART_S)
        waited_s += LOOKS_APART_S
        later = _cpu_seconds(target, pids)
        engines = tuple(
            OtherEngine(p.pid, p.name, _share(p.pid, used, later)) for p in first.other_engines
        )
        if waited_s > patience_s or not any(e.is_busy for e in engines):
            break
    second = _look(target, launcher, work_dir, roots)
    off = None if first.unix_s is None else first.unix_s - (before + after) / 2
    return Inspection(
        model=first,
        work=second,
        engines=engines,
        clock_off_s=off,
        clock_error_s=(after - before) / 2,
        clock_step_s=_step(first, second),
        model_sha256=sha256,
        throttling=throttling_in_words(target),
    )


def grace() -> float:
    """Seconds that an engine at work is waited for. Raises UsageError."""
    text = os.environ.get(GRACE_ENV, "")
    try:
        seconds = float(text) if text else GRACE_S
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UsageError(f"{GRACE_ENV}={text!r} in the environment: give seconds, such as 60")
    return seconds


def _look(target: Target, launcher: PurePath, directory: PurePath, roots: Sequence[str]) -> Look:
    answer = ask(target, [str(launcher), "inspect", "--dir", str(directory), *roots])
    look = _decoded(Look, answer, f"{launcher} inspect")
    return replace(look, state=completed(look.state, target))


def _decoded(cls: type[T], answer: Mapping[str, Any], where: str) -> T:
    try:
        return from_json(cls, answer, where)
    except ValueError as e:
        raise DeviceError(f"{e}; is it a moe-launcher of this version?") from None


def _step(first: Look, second: Look) -> float | None:
    if None in (first.unix_s, second.unix_s, first.monotonic_ms, second.monotonic_ms):
        return None
    passed = ((second.monotonic_ms or 0) - (first.monotonic_ms or 0)) / 1000
    return (second.unix_s or 0) - (first.unix_s or 0) - passed


# --- what else runs there ------------------------------------------------------------------------


def _cpu_seconds(target: Target, pids: Sequence[int]) -> dict[int, tuple[float, str, float]]:
    """By pid: seconds since boot, when the process started, CPU time of all its threads."""
    if not pids:
        return {}
    files = [f"/proc/{pid}/stat" for pid in pids]
    done = target.call(["cat", "/proc/uptime", *files], timeout_s=_STAT_S)
    return parse_stats(done.stdout.decode(errors="replace"))


def parse_stats(text: str) -> dict[int, tuple[float, str, float]]:
    """Of /proc/uptime and then any number of /proc/PID/stat; lines that are neither are left out.

    A name may hold blanks and brackets: the fields begin after the last one.
    """
    first, _, rest = text.partition("\n")
    found = {}
    for line in rest.splitlines():
        head, bracket, tail = line.rpartition(")")
        fields = tail.split()
        try:
            pid, uptime_s = int(head.partition(" ")[0]), float(first.split()[0])
            ticks = int(fields[11]) + int(fields[12])
            started = fields[19]
        except (ValueError, IndexError):
            continue
        if bracket:
            found[pid] = (uptime_s, started, ticks / _TICKS_PER_S)
    return found


def _share(
    pid: int,
    used: Mapping[int, tuple[float, str, float]],
    later: Mapping[int, tuple[float, str, float]],
) -> float | None:
    if pid not in used or pid not in later:
        return None
    (began_s, started, cpu_s), (ended_s, same, cpu_later_s) = used[pid], later[pid]
    if started != same or ended_s <= began_s:
        return None
    return (cpu_later_s - cpu_s) / (ended_s - began_s)


# --- the model -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Digest:
    path: str
    sha256: str | None = None  # there is no such file


@dataclass(frozen=True)
class _Digests:
    files: tuple[_Digest, ...]


def _model_sha256(target: Target, launcher: PurePath, files: Sequence[PurePath], size: int) -> str:
    """As `models.hashes` has it: of the file, or of the list of its shards' hashes, in order."""
    limit_s = 60.0 + size / _HASH_BYTES_PER_S
    argv = [str(launcher), "digest", *map(str, files)]
    answer = _decoded(_Digests, ask(target, argv, timeout_s=limit_s), f"{launcher} digest")
    known = {d.path: d.sha256 for d in answer.files if d.sha256 is not None}
    missing = [str(file) for file in files if str(file) not in known]
    if missing:
        raise DeviceError(f"{target.id.name}: {missing[0]} is not there any more")
    digests = [known[str(file)] for file in files]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(f"{d}\n" for d in digests).encode()).hexdigest()
