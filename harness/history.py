"""How long cells took in earlier campaigns, to say what a plan will take. Reads `runs_dir` only."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path

from harness import rundir
from harness.errors import HarnessError
from harness.journal import load_records
from harness.jsonable import from_json, to_json
from harness.planned import Arm, Plan
from harness.records import TargetId

# Newest first. So many that a night finds what it left out for some nights; of one without any of
# the arms only its plan is read.
CAMPAIGNS = 200
# one that is refused at its limit will be again, and as soon
COMPLETE = ("ok", "refused")


def expected_seconds(
    runs_dir: Path, plan: Plan, model_sha256: str | None, target: TargetId | None
) -> dict[str, float]:
    """Median seconds of a cell by arm, for arms that ran before with the same settings and model.

    On `target`, or where None on whichever. From the newest campaign that has the arm; what cannot
    be read is passed over.
    """
    known: dict[str, float] = {}
    for path in sorted(runs_dir.glob(f"*/{rundir.PLAN}"), reverse=True)[:CAMPAIGNS]:
        missing = {name: arm for name, arm in plan.arms.items() if name not in known}
        if not missing:
            break
        known |= _durations(path.parent, missing, model_sha256, target)
    return known


def expected_in_all(plan: Plan, seconds: Mapping[str, float]) -> tuple[float, int]:
    """Seconds of all waits and of the cells that are known, and how many cells are not."""
    known = sum(cell.wait_s + seconds.get(cell.arm, 0.0) for cell in plan.cells)
    return known, sum(cell.arm not in seconds for cell in plan.cells)


def _durations(
    campaign: Path, arms: dict[str, Arm], model_sha256: str | None, target: TargetId | None
) -> dict[str, float]:
    try:
        environment = json.loads((campaign / rundir.ENVIRONMENT).read_bytes())
        if environment["model_sha256"] != model_sha256:
            return {}
        earlier = from_json(Plan, json.loads((campaign / rundir.PLAN).read_bytes()))
        # the name of an arm does not change what it costs
        known = {name: _work(arm) for name, arm in earlier.arms.items()}
        same = {
            before: [name for name, arm in arms.items() if _work(arm) == work]
            for before, work in known.items()
        }
        if not any(same.values()):
            return {}
        records = load_records(campaign)
    except (OSError, ValueError, KeyError, TypeError, HarnessError):
        return {}
    found: dict[str, list[float]] = {}
    for record in records:
        began, ended = record.started_unix_s, record.ended_unix_s
        if record.status not in COMPLETE or began is None or ended is None:
            continue
        if target is not None and record.target != target:
            continue
        for name in same.get(record.arm, ()):
            found.setdefault(name, []).append(ended - began)
    return {name: statistics.median(values) for name, values in found.items()}


def _work(arm: Arm) -> dict[str, object]:
    work = {k: v for k, v in to_json(arm).items() if k not in ("name", "time_limit_s")}
    # nor does where its engine lies
    work["binary"] = None if arm.binary is None else arm.binary.sha256
    return work
