"""Asks engine and launcher, before anything is started, whether an arm can run here. Runs both.

`moe-engine --plan-memory` (docs/engine.md) reads the model's catalogue, loads no weights and
answers in well under a second, so every arm is asked: flags that cannot act together, a prompt that
does not fit and a memory limit that is too small are found before the first cell. Not so where the
limit is one of a ladder: that the engine refuses there is what the campaign is to find.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from harness.engine_env import engine_environment
from harness.engines import native
from harness.engines.native_argv import plan_memory_argv
from harness.errors import DeviceError, UsageError
from harness.records import Arm

EXIT_USAGE, EXIT_MODEL = 2, 3
TIME_LIMIT_S = 120.0


def check_arm(engine: Path, model: Path, arm: Arm) -> int | None:
    """The bytes of anonymous memory that the arm needs; None where it will not fit into its level.

    Raises UsageError when the engine refuses the arm or the arm's limit is below its needs.
    """
    plan = memory_plan(engine, model, arm)
    if plan is None:
        return None
    needed = int(plan["needed_bytes"])
    if arm.level is not None:
        return needed
    if arm.data_limit_bytes is not None and needed > arm.data_limit_bytes:
        mib = -(-needed // 2**20)
        raise UsageError(
            f"cells.{arm.name}: needs {needed} bytes of anonymous memory, memory.limit_mb allows "
            f"{arm.data_limit_bytes}; use memory.limit_mb={mib} or more, or a smaller cache"
        )
    return needed


def check_cgroup(launcher: Path, arm: Arm) -> None:
    """Raises UsageError when the arm requires a cgroup limit that cannot be had here."""
    if arm.cgroup_limit_bytes is None or arm.cgroup_mode != "required":
        return
    argv = [str(launcher), "selftest", "--cgroup-limit-bytes", str(arm.cgroup_limit_bytes)]
    try:
        done = subprocess.run(
            argv, capture_output=True, timeout=TIME_LIMIT_S, check=False, stdin=subprocess.DEVNULL
        )
        answer = json.loads(done.stdout)
        available, reason = answer["cgroup_available"], answer["cgroup_reason"]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        raise DeviceError(
            f"{launcher}: selftest did not answer as docs/launcher.md says; is it a moe-launcher?"
        ) from None
    if not available:
        raise UsageError(
            f"memory.cgroup: required, but {reason}; use memory.cgroup=wanted or off, or give the "
            "rights that are missing"
        )


def memory_plan(engine: Path, model: Path, arm: Arm) -> dict[str, Any] | None:
    """The engine's memory plan for an arm, as it prints it, with no limit in force.

    None: it does not fit into its level.
    """
    with tempfile.TemporaryDirectory(prefix="moe-harness-") as scratch:
        prompt = Path(scratch) / "prompt.txt"
        prompt.write_bytes(arm.prompt.encode())
        argv = plan_memory_argv(engine, model, prompt, arm)
        try:
            done = subprocess.run(
                argv,
                capture_output=True,
                timeout=TIME_LIMIT_S,
                check=False,
                stdin=subprocess.DEVNULL,
                env=engine_environment(),
            )
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"{engine}: --plan-memory gave no answer in {TIME_LIMIT_S:g} s; is it a moe-engine?"
            ) from None
        except OSError as e:
            raise DeviceError(f"{engine}: cannot be run: {e.strerror}") from e
    words = native.complaint(done.stderr) or f"exit code {done.returncode}, no error message"
    if done.returncode == native.EXIT_REFUSED and arm.level is not None:
        return None
    # refused although no limit is in force: a cache below one token's cycle
    if done.returncode in (EXIT_USAGE, EXIT_MODEL, native.EXIT_REFUSED):
        raise UsageError(f"cells.{arm.name}: the engine refuses it: {words}")
    if done.returncode != 0:
        raise DeviceError(f"cells.{arm.name}: {engine} --plan-memory failed: {words}")
    try:
        plan = json.loads(done.stdout)
        int(plan["needed_bytes"])
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"{engine}: --plan-memory did not answer as docs/engine.md says; is it a moe-engine?"
        ) from None
    return dict(plan)
