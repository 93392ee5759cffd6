"""Asks engine and launcher, before anything is started, whether an arm can run on the target.

`moe-engine --plan-memory` (docs/engine.md) reads the model's catalogue, loads no weights and
answers in well under a second, so every arm is asked: flags that cannot act together, a prompt that
does not fit and a memory limit that is too small are found before the first cell. Not so where the
limit is one of a ladder: that the engine refuses there is what the campaign is to find.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

from harness.engine_env import clean_argv
from harness.engines import native
from harness.engines.native_argv import plan_memory_argv
from harness.errors import DeviceError, UsageError
from harness.planned import Arm
from harness.targets.target import Target

EXIT_USAGE, EXIT_MODEL = 2, 3
# of a shell that could not start a program
_NOT_STARTED = (126, 127)
TIME_LIMIT_S = 120.0
_PROMPT = "prompt.txt"


@contextlib.contextmanager
def scratch_dir(target: Target, campaign_dir: Path) -> Iterator[PurePath]:
    """A directory on the target for as long as it is asked; the campaign's may not be there yet."""
    if target.id.kind == "local":
        with tempfile.TemporaryDirectory(prefix="moe-harness-") as here:
            yield Path(here)
        return
    there = target.work_dir(campaign_dir / "preflight")
    try:
        yield there
    finally:
        target.call(["rm", "-rf", "--", str(there)], timeout_s=TIME_LIMIT_S)


def check_arm(
    target: Target, engine: PurePath, model: PurePath, arm: Arm, scratch: PurePath
) -> int | None:
    """The bytes of anonymous memory that the arm needs; None where it will not fit into its level.

    Paths are the target's. Raises UsageError when the engine refuses the arm or the arm's limit is
    below its needs.
    """
    plan = memory_plan(target, engine, model, arm, scratch)
    if plan is None:
        return None
    needed = int(plan["needed_bytes"])
    if arm.level is not None:
        return needed
    if arm.data_limit_bytes is not None and needed > arm.data_limit_bytes:
        mib = -(-needed // 2**20)
        given, enough = "limit_mb", f"memory.limit_mb={mib}"
        if arm.limit_share is not None:
            given, enough = "limit_share", f"memory=uncapped memory.limit_mb={mib}"
        raise UsageError(
            f"cells.{arm.name}: needs {needed} bytes of anonymous memory, memory.{given} allows "
            f"{arm.data_limit_bytes}; use {enough} or more, or a smaller cache"
        )
    return needed


def check_cgroup(target: Target, launcher: PurePath, arm: Arm) -> None:
    """Raises UsageError when the arm requires a cgroup limit that cannot be had there."""
    if arm.cgroup_limit_bytes is None or arm.cgroup_mode != "required":
        return
    argv = [str(launcher), "selftest", "--cgroup-limit-bytes", str(arm.cgroup_limit_bytes)]
    done = target.call(argv, timeout_s=TIME_LIMIT_S)
    try:
        answer = json.loads(done.stdout)
        available, reason = answer["cgroup_available"], answer["cgroup_reason"]
    except (ValueError, KeyError, TypeError):
        raise DeviceError(
            f"{launcher}: selftest did not answer as docs/launcher.md says; is it a moe-launcher?"
        ) from None
    if not available:
        raise UsageError(
            f"memory.cgroup: required, but {reason}; use memory.cgroup=wanted or off, or give the "
            "rights that are missing"
        )


def memory_plan(
    target: Target, engine: PurePath, model: PurePath, arm: Arm, scratch: PurePath
) -> dict[str, Any] | None:
    """The engine's memory plan for an arm, as it prints it, with no limit in force.

    None: it does not fit into its level.
    """
    prompt = scratch / _PROMPT
    with tempfile.NamedTemporaryFile(prefix="moe-harness-") as file:
        file.write(arm.prompt.encode())
        file.flush()
        target.put(Path(file.name), prompt)
    argv = clean_argv(plan_memory_argv(engine, model, prompt, arm))
    try:
        done = target.call(argv, timeout_s=TIME_LIMIT_S)
    except DeviceError as e:
        if arm.binary is None:
            raise
        raise DeviceError(f"cells.{arm.name}: {arm.binary.path}: {e}") from e
    words = native.complaint(done.stderr) or f"exit code {done.code}, no error message"
    if done.code == native.EXIT_REFUSED and arm.level is not None:
        return None
    # refused although no limit is in force: a cache below one token's cycle
    if done.code in (EXIT_USAGE, EXIT_MODEL, native.EXIT_REFUSED):
        whose = "the engine" if arm.binary is None else f"its engine ({arm.binary.path})"
        raise UsageError(f"cells.{arm.name}: {whose} refuses it: {words}")
    if done.code in _NOT_STARTED:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        whose = str(engine) if arm.binary is None else f"cells.{arm.cell}.binary: {engine}"
        raise DeviceError(f"{whose}: cannot be run on {target.id.name}: {said or words}")
    if done.code != 0:
        raise DeviceError(f"cells.{arm.name}: {engine} --plan-memory failed: {words}")
    try:
        plan = json.loads(done.stdout)
        int(plan["needed_bytes"])
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"{engine}: --plan-memory did not answer as docs/engine.md says; is it a moe-engine?"
        ) from None
    return dict(plan)
