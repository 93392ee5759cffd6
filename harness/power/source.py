"""Which campaign shows the device's own noise, and its cells. Reads `runs_dir`, writes nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from harness import rundir
from harness.analysis.device_noise import DeviceNoise, device_of
from harness.analysis.series import Series
from harness.collect import read_series
from harness.errors import UsageError
from harness.journal import finished_cells, read_journal
from harness.jsonable import from_json, to_json
from harness.records import Arm, Plan

_MAKE_ONE = "make one: python -m harness +experiment=aa"
_NOT_SETTINGS = ("name", "time_limit_s")


@dataclass(frozen=True)
class Source:
    """A device as the cells of `arms` showed it; `aa`: every arm of the campaign is the same."""

    campaign_dir: Path
    arms: tuple[str, ...]
    aa: bool
    device: DeviceNoise


def read_source(campaign: str | None, runs_dir: Path) -> Source:
    """The device of a campaign, by directory or id; None: of the newest A/A campaign.

    Of any other campaign the baseline's cells serve, and those of arms with equal settings. Raises
    UsageError where there is none or too little in it, DeviceError where it is damaged.
    """
    path = _newest_aa(runs_dir) if campaign is None else _named(campaign, runs_dir)
    plan = _plan(path)
    arms = _alike(plan)
    if not arms:
        raise UsageError(f"{path}: its plan compares nothing, so that no arm repeats; {_MAKE_ONE}")
    events = read_journal(path)
    records = [r for r in finished_cells(path, events).records.values() if r.arm in arms]
    folders = {
        int(e.data["index"]): path / Path(str(e.data["record"])).parent
        for e in events
        if e.event == "cell_finished"
    }
    series: dict[int, Series] = {}
    for record in records:
        found = read_series(folders[record.index]) if record.status == "ok" else None
        if found is not None:
            series[record.index] = found
    try:
        device = device_of(records, series)
    except ValueError as e:
        raise UsageError(f"{path}: {e}; {_MAKE_ONE}") from None
    return Source(path, arms, len(arms) == 1 + len(plan.candidates), device)


def _newest_aa(runs_dir: Path) -> Path:
    for path in sorted(runs_dir.glob(f"*/{rundir.PLAN}"), reverse=True):
        try:
            plan = _plan(path.parent)
        except UsageError:  # of another version of the harness
            continue
        if plan.design in ("pairs", "abba") and len(_alike(plan)) == 1 + len(plan.candidates) > 1:
            return path.parent
    raise UsageError(
        f"{runs_dir}: no A/A campaign there to take the device's noise from; {_MAKE_ONE}, or name "
        "another campaign with --from"
    )


def _named(campaign: str, runs_dir: Path) -> Path:
    for path in (Path(campaign), runs_dir / campaign):
        if (path / rundir.PLAN).is_file():
            return path
    raise UsageError(
        f"--from {campaign}: no campaign there, nor in {runs_dir}; give its directory or its id"
    )


def _plan(campaign_dir: Path) -> Plan:
    path = campaign_dir / rundir.PLAN
    try:
        return from_json(Plan, json.loads(path.read_bytes()))
    except (OSError, ValueError) as e:
        raise UsageError(f"{path}: not a plan that can be read ({e})") from None


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
