"""Whether a campaign can run on its device, asked before its first cell. Goes through the target.

First every arm is asked for (engine, memory, cgroup), then the device is inspected. What speaks
against it is refused, one line; the rest is handed on, for the screen and for `environment.json`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from harness.device.deploy import Deployed
from harness.device.inspection import inspect
from harness.device.launcher import ORPHAN_S
from harness.device.preflight import check_arm, check_cgroup, scratch_dir
from harness.device.suitability import Finding, Needs, cell_bytes, findings, refuse
from harness.engines.native_argv import placed_arm
from harness.planned import Plan
from harness.readings import DeviceState
from harness.schema import Config
from harness.targets.target import CELL_LOCK, Target

_POLL_S = 0.5


@dataclass(frozen=True)
class Readiness:
    """No finding is a failure. `work_dir`: where the cells' files go, on the target."""

    findings: tuple[Finding, ...]
    work_dir: PurePath
    page_bytes: int | None

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What is to be shown."""
        return tuple(f for f in self.findings if f.level == "warning")


def check_device(
    target: Target,
    deployed: Deployed,
    plan: Plan,
    config: Config,
    *,
    campaign_dir: Path,
    model_bytes: int,
    seen: Sequence[DeviceState] = (),
    nap: Callable[[float], None] = time.sleep,
) -> Readiness:
    """Raises UsageError for what was asked for and cannot be had, DeviceError for the device.

    The device is claimed, and what the campaign needs is on it. `campaign_dir` need not exist yet.
    `seen`: states of the campaign so far, of one that is resumed.
    """
    _end_leftover(target, target.work_dir(campaign_dir) / CELL_LOCK, nap)
    anon = _ask_arms(target, deployed, plan, campaign_dir)
    local = target.id.kind == "local"
    work_dir = _existing(campaign_dir) if local else target.work_dir(campaign_dir)
    inspection = inspect(
        target,
        deployed.build.launcher,
        work_dir=work_dir,
        model_files=deployed.model_files,
        nap=nap,
    )
    writes = [cell_bytes(plan.arms[cell.arm]) for cell in plan.cells]
    needs = Needs(
        # a device keeps the files of one cell, until they are fetched
        write_bytes=sum(writes) if local else max(writes, default=0),
        model_bytes=model_bytes,
        anon_bytes=anon,
        direct_io=any(a.engine.moe_stream and a.engine.direct_io for a in plan.arms.values()),
        probes=config.schedule.probe_s > 0,
        gate=config.schedule.gate,
        session=config.session,
    )
    found = findings(inspection, needs, seen)
    refuse(found)
    return Readiness(found, work_dir, inspection.work.page_bytes)


def _end_leftover(target: Target, lock: PurePath, nap: Callable[[float], None]) -> None:
    """A cell of this campaign that still runs, as its harness was killed, is no other engine."""
    waited_s = 0.0
    while target.is_locked(lock) and waited_s < ORPHAN_S:
        nap(_POLL_S)
        waited_s += _POLL_S
    if target.is_locked(lock):
        target.end_holders(lock)


def _ask_arms(target: Target, deployed: Deployed, plan: Plan, campaign_dir: Path) -> int | None:
    """Anonymous memory of the largest cell, None where none fits into its level."""
    build, needed = deployed.build, []
    with scratch_dir(target, campaign_dir) as scratch:
        for arm in plan.arms.values():
            check_cgroup(target, build.launcher, arm)
            placed = placed_arm(arm, deployed.inputs)
            engine = deployed.engine_of(arm).engine
            needed.append(check_arm(target, engine, deployed.model, placed, scratch))
    return max((n for n in needed if n is not None), default=None)


def _existing(directory: Path) -> Path:
    path = directory.absolute()
    return next(p for p in (path, *path.parents) if p.is_dir())
