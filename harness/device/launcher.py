"""Host half of the cell launcher: its command line and its result file. Touches files it is named.

The launcher (`engine_src/launcher`, docs/launcher.md) measures the cell on the target; what it
measured is in `result.json` in the directory it was given.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Literal

from harness.device.android_state import completed
from harness.errors import DeviceError
from harness.jsonable import from_json
from harness.jsonfile import read_json
from harness.planned import CgroupMode
from harness.readings import DeviceState, Probes
from harness.records import CgroupMemory
from harness.targets.target import Target

RESULT = "result.json"
LOG = "launcher.txt"  # what the launcher itself has to say
EXIT_RESULT_NOT_WRITTEN = 5
ANSWER_S = 30.0  # of verbs that look at the device, and run nothing
# so long it takes to notice that its harness is gone, and to end
ORPHAN_S = 4.0

Status = Literal[
    "ok", "failed", "killed", "spawn_failed", "limit_not_enforced", "cgroup_unavailable"
]


@dataclass(frozen=True)
class Sampling:
    """How the launcher measures: intervals in milliseconds, length of each probe in seconds."""

    sample_ms: int = 20
    device_ms: int = 250
    probe_s: float = 1.0


@dataclass(frozen=True)
class LauncherResult:
    """`result.json`; None where the launcher could not measure."""

    status: Status
    status_detail: str | None = None
    argv: tuple[str, ...] = ()
    exit_code: int | None = None
    signal: int | None = None
    interrupted: bool | None = None
    host_lost: bool | None = None  # ended, as the harness was not heard of for the lease
    started_unix_s: float | None = None
    ended_unix_s: float | None = None
    wall_s: float | None = None
    data_limit_bytes: int | None = None
    cgroup: CgroupMemory | None = None
    anon_peak_bytes: int | None = None
    rss_peak_bytes: int | None = None
    sampler_cpu_share: float | None = None
    cpu_wait_s: float | None = None  # the engine's threads were ready to run and waited for a core
    cpu_throttled_s: float | None = None  # a CPU quota held the engine's cgroup back
    neighbour_cpu_s: float | None = None  # used by others, on all cores
    steal_cpu_s: float | None = None  # taken by the hypervisor, on all cores
    samples_error: str | None = None  # why samples.csv or device.csv were cut short
    entry: DeviceState | None = None
    exit: DeviceState | None = None
    probe: Probes = field(default_factory=Probes)


def launcher_argv(
    launcher: PurePath,
    work_dir: PurePath,
    program: list[str],
    *,
    sampling: Sampling,
    probe_file: PurePath | None,
    data_limit_bytes: int | None,
    cgroup_limit_bytes: int | None,
    cgroup_mode: CgroupMode,
    time_limit_s: float,
) -> list[str]:
    """The launcher's command line for one cell whose files go to `work_dir` (all paths absolute).

    The program gets the clean environment of the launcher and nothing else.
    """
    argv = [str(launcher), "run", "--dir", str(work_dir), "--cwd", str(work_dir)]
    if data_limit_bytes is not None:
        argv += ["--data-limit-bytes", str(data_limit_bytes)]
    if cgroup_limit_bytes is not None:
        argv += ["--cgroup-limit-bytes", str(cgroup_limit_bytes), "--cgroup-mode", cgroup_mode]
    argv += ["--time-limit-s", f"{time_limit_s:.3f}"]
    argv += ["--sample-ms", str(sampling.sample_ms), "--device-ms", str(sampling.device_ms)]
    argv += ["--probe-s", f"{sampling.probe_s:.3f}"]
    if probe_file is not None and sampling.probe_s > 0:
        argv += ["--probe-file", str(probe_file)]
    return [*argv, "--", *program]


def read_result(cell_dir: Path) -> LauncherResult | None:
    """What the launcher wrote in `cell_dir`; None when it did not get that far.

    Raises DeviceError when the file is there but cannot be read as docs/launcher.md says.
    """
    path = cell_dir / RESULT
    data = read_json(path)
    if data is None:
        return None
    # null where a list or an object is meant: a launcher that could not look
    data = {k: v for k, v in data.items() if v is not None}
    try:
        return from_json(LauncherResult, data, RESULT)
    except ValueError as e:
        raise DeviceError(f"{path}: {e}") from e


def read_state(target: Target, launcher: PurePath) -> DeviceState:
    """What the device looks like now: verb `state`, and a phone's services. Raises DeviceError."""
    try:
        state = from_json(DeviceState, ask(target, [str(launcher), "state"]), "state")
    except ValueError as e:
        raise DeviceError(f"{launcher} {e}") from None
    return completed(state, target)


def ask(target: Target, argv: Sequence[str], *, timeout_s: float = ANSWER_S) -> dict[str, Any]:
    """The JSON object that a verb of the launcher answers with.

    Without what is null: a launcher that could not look. Raises DeviceError with its own words
    where it ends in another way.
    """
    done = target.call(argv, timeout_s=timeout_s)
    verb = f"{argv[0]} {argv[1]}"
    if done.code != 0:
        said = done.stderr.decode(errors="replace").strip().split("\n")[-1]
        raise DeviceError(f"{verb}: {said or f'exit code {done.code}, and no words'}")
    try:
        return {k: v for k, v in json.loads(done.stdout).items() if v is not None}
    except (ValueError, AttributeError):
        raise DeviceError(
            f"{verb}: did not answer as docs/launcher.md says; is it a moe-launcher?"
        ) from None


def last_word(cell_dir: Path) -> str:
    """The last line that the launcher itself wrote; empty when it had nothing to say."""
    try:
        lines = (cell_dir / LOG).read_text(errors="replace").split("\n")
    except FileNotFoundError:
        return ""
    return next((line for line in reversed(lines) if line.strip()), "")
