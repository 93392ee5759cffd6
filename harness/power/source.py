"""Which campaign shows the device's own noise, and its cells. Reads `runs_dir`, writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness import rundir
from harness.analysis.device_noise import DeviceNoise, device_of
from harness.analysis.pairs import PairSettings
from harness.errors import UsageError
from harness.jsonable import to_json
from harness.judgement import Measured, pair_settings, stored_plan
from harness.planned import Arm, Plan
from harness.schema import BLOCK_DESIGNS

_MAKE_ONE = "make one: python -m harness +experiment=aa"
_NOT_SETTINGS = ("name", "time_limit_s")


@dataclass(frozen=True)
class Source:
    """A device as the cells of `arms` showed it; `aa`: every arm of the campaign is the same.

    `settings`: of its verdict, without the estimates between the looks.
    """

    campaign_dir: Path
    arms: tuple[str, ...]
    aa: bool
    device: DeviceNoise
    settings: PairSettings


def read_source(campaign: str | None, runs_dir: Path) -> Source:
    """The device of a campaign, by directory or id; None: of the newest A/A campaign.

    Of any other campaign the baseline's cells serve, and those of arms with equal settings. Raises
    UsageError where there is none or too little in it, DeviceError where it is damaged.
    """
    path = (
        _newest_aa(runs_dir)
        if campaign is None
        else rundir.find_campaign(campaign, runs_dir, "--from ")
    )
    measured = Measured.read(path)
    plan = measured.plan
    arms = _alike(plan)
    if not arms:
        raise UsageError(f"{path}: its plan compares nothing, so that no arm repeats; {_MAKE_ONE}")
    records = [r for r in measured.records() if r.arm in arms]
    try:
        device = device_of(records, measured.series(records))
    except ValueError as e:
        raise UsageError(f"{path}: {e}; {_MAKE_ONE}") from None
    return Source(
        campaign_dir=path,
        arms=arms,
        aa=len(arms) == 1 + len(plan.candidates),
        device=device,
        settings=pair_settings(measured.settings, interim=False),
    )


def _newest_aa(runs_dir: Path) -> Path:
    for path in sorted(runs_dir.glob(f"*/{rundir.PLAN}"), reverse=True):
        try:
            plan = stored_plan(path.parent)
        except UsageError:  # of another version of the harness
            continue
        if plan.design in BLOCK_DESIGNS and len(_alike(plan)) == 1 + len(plan.candidates) > 1:
            return path.parent
    raise UsageError(
        f"{runs_dir}: no A/A campaign there to take the device's noise from; {_MAKE_ONE}, or name "
        "another campaign with --from"
    )


def _alike(plan: Plan) -> tuple[str, ...]:
    """The baseline and the candidates whose settings are its own; empty without a baseline."""
    if plan.baseline is None:
        return ()
    own = plan.arms.get(plan.baseline)
    same = [
        c for c in plan.candidates if own is not None and _settings(plan.arms[c]) == _settings(own)
    ]
    return (plan.baseline, *same)


def _settings(arm: Arm) -> dict[str, object]:
    return {k: v for k, v in to_json(arm).items() if k not in _NOT_SETTINGS}
