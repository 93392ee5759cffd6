"""Runs the campaigns of a sweep, one after the other. The only module here that does anything.

All of them are composed, checked and planned before the first one starts. One that fails does not
keep the others from running.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness import rundir
from harness.campaign import run as run_campaign
from harness.campaign.foresight import PLAN_ONLY, Foreseen, Foresight, show
from harness.campaign.parts import Member
from harness.configure import compose, parse_overrides, resolved
from harness.errors import DeviceError, HarnessError, Interrupted, UsageError
from harness.jsonfile import read_as
from harness.sweep.combinations import Combination, combinations
from harness.sweep.nightly import is_night, night_of
from harness.sweep.state import (
    SETTLED,
    Part,
    SweepState,
    find_sweep,
    held,
    left_out,
    part_of,
    read_state,
    write_state,
)
from harness.sweep.words import expected_of, name_of, standing, table, time_in_words
from harness.targets.target import DeviceBusy
from harness.tracking_store import without_password
from harness.tracking_text import without_credentials
from harness.verdicts import CampaignVerdict
from harness.words import counted, duration

if TYPE_CHECKING:
    from harness.report.terminal import Terminal

# of a command line that takes up a sweep: what it was asked for is stored
_WITH_RESUME = ("resume", "runs_dir", "plan_only")


def run(overrides: Sequence[str], *, multirun: bool) -> int:
    """What a command line asks for: one campaign, or a sweep of them; the process's exit code."""
    resumed = _resumed(overrides, multirun=multirun)
    if resumed is not None:
        return _resume(resumed, overrides)
    if is_night(overrides):
        name, night, members = night_of(overrides)
        return _start(name, members, overrides, night.budget_s)
    if multirun:
        return _start(None, combinations(overrides), overrides, None)
    return run_campaign(overrides)


# --- before the first campaign -------------------------------------------------------------------


def _start(
    name: str | None,
    members: Sequence[Combination],
    asked: Sequence[str],
    budget_s: float | None,
) -> int:
    from harness.report.terminal import Terminal

    view = Terminal()
    try:
        foreseen = _foreseen(members, asked, view)
        configs = [f.config for f in foreseen]
        if name is None:
            names = list(dict.fromkeys(config.name for config in configs))
            name = names[0] if len(names) == 1 else "experiments"
        parts = tuple(
            _part(member, f, i) for i, (member, f) in enumerate(zip(members, foreseen, strict=True))
        )
        state = SweepState(rundir.new_id(f"sweep-{name}"), name, tuple(asked), parts, budget_s)
        if _plan_only(asked):
            _show_plans(state, foreseen, view)
            return 0
        runs_dir = Path(configs[0].runs_dir)
        rundir.check_runs_dir(runs_dir)
        directory = rundir.make_campaign_dir(runs_dir, state.id)
        write_state(directory, state)
        view.say(f"sweep {directory}: {counted(len(parts), 'campaign')}; {time_in_words(parts)}")
        with held(directory):
            return _carry_out(directory, state, view, Member())
    finally:
        view.close()


def _foreseen(
    members: Sequence[Combination], asked: Sequence[str], view: Terminal
) -> list[Foreseen]:
    """All, or a UsageError that names the first campaign that cannot be."""
    foresight, found, wrong = Foresight(view), [], []
    asked_for: dict[str, int] = {}
    for i, member in enumerate(members):
        name = without_credentials(" ".join(member.varied))
        try:
            if is_night(member.overrides):
                raise UsageError("a night is a sweep itself; run it without -m")
            data = compose(member.overrides)
            if without_password(data) != data:  # campaigns.json has the command line
                raise UsageError(
                    "tracking.uri: holds a password, which is not stored, so that the sweep could "
                    "not be resumed; give it in MLFLOW_TRACKING_USERNAME and "
                    "MLFLOW_TRACKING_PASSWORD (a database's: in ~/.pgpass)"
                )
            found.append(foresight.of(data))
            same = asked_for.setdefault(json.dumps(resolved(data), sort_keys=True, default=str), i)
            if same != i:
                view.say(
                    f"warning: campaigns {same + 1} and {i + 1} are the same ({name})", "yellow"
                )
        except UsageError as e:
            if not member.varied:
                raise
            wrong.append(f"campaign {i + 1} of {len(members)} ({name}): {e}")
    if wrong:
        others = f" (and {len(wrong) - 1} more of {len(members)})" if len(wrong) > 1 else ""
        globbed = any("glob(" in line for line in asked)
        hint = "; leave names out with glob(*,exclude=[a,b])" if globbed else ""
        raise UsageError(f"{wrong[0]}{others}{hint}; nothing was started")
    return found


def _part(member: Combination, foreseen: Foreseen, index: int) -> Part:
    from harness.history import expected_in_all

    seconds, unknown = expected_in_all(foreseen.plan, foreseen.seconds)
    if index:  # its first cell waits, too
        seconds += foreseen.config.schedule.spacing_s
    return Part(
        experiment=foreseen.config.name,
        overrides=member.overrides,
        varied=member.varied,
        expected_s=seconds,
        unknown_cells=unknown,
    )


def _plan_only(lines: Sequence[str]) -> bool:
    last = [o for o in parse_overrides(lines) if o.key_or_group == "plan_only"][-1:]
    return bool(last) and last[0].value() is True


def _show_plans(state: SweepState, foreseen: Sequence[Foreseen], view: Terminal) -> None:
    left = state.budget_s
    for i, (part, one) in enumerate(zip(state.parts, foreseen, strict=True)):
        view.say("")
        view.say(f"campaign {i + 1} of {len(state.parts)}: {name_of(part)}", "bold")
        show(one, view)
        if left is None:
            continue
        if left_out(part, left):
            view.say(f"left out: expected {expected_of(part)}, {duration(left)} left", "yellow")
        else:
            left = max(0.0, left - (part.expected_s or 0.0))
    view.say("")
    view.say(f"{counted(len(state.parts), 'campaign')}; {time_in_words(state.parts)}")
    view.say(PLAN_ONLY)


def _resumed(overrides: Sequence[str], *, multirun: bool) -> Path | None:
    """The directory of the sweep that is to be taken up; None: a campaign, or none."""
    parsed = parse_overrides(overrides)
    said = {o.key_or_group: str(o.input_line) for o in parsed if not o.is_sweep_override()}
    if "resume" not in said:
        return None
    if multirun:
        raise UsageError("-m: resume= takes up what is stored, as it is stored; leave -m out")
    data = compose([said[key] for key in ("resume", "runs_dir") if key in said])
    return find_sweep(str(data["resume"]), Path(str(data["runs_dir"])))


def _resume(directory: Path, overrides: Sequence[str]) -> int:
    from harness.report.terminal import Terminal

    for override in parse_overrides(overrides):
        if override.key_or_group not in _WITH_RESUME:
            raise UsageError(
                f"{override.input_line}: a sweep is taken up as it was stored; leave it out"
            )
    view = Terminal()
    try:
        with held(directory):
            state = _placed(read_state(directory), directory.parent)
            view.say(f"sweep {directory}, resumed: {standing(state)}")
            if _plan_only(overrides):
                view.table(table(state))
                return 0
            # what ran last, and when, is not known on this clock: the next cell waits from now on
            begun = any(part.took_s is not None for part in state.parts)
            member = Member(cell_ended=time.monotonic() if begun else None)
            return _carry_out(directory, state, view, member)
    finally:
        view.close()


def _placed(state: SweepState, runs_dir: Path) -> SweepState:
    """Campaigns still to begin lie beside the others, wherever this process was started."""
    moved = f"runs_dir={rundir.as_value(str(runs_dir))}"
    there: dict[tuple[str, ...], bool] = {}  # all say the same, mostly
    parts = []
    for part in state.parts:
        rest = tuple(o for o in part.overrides if not o.lstrip("+").startswith("runs_dir="))
        own = tuple(o for o in part.overrides if o not in rest)
        if own not in there:
            there[own] = Path(str(compose(own)["runs_dir"])).resolve() == runs_dir.resolve()
        kept = part if there[own] else dataclasses.replace(part, overrides=(*rest, moved))
        parts.append(kept)
    return dataclasses.replace(state, parts=tuple(parts))


# --- from the first campaign on ------------------------------------------------------------------


def _carry_out(directory: Path, state: SweepState, view: Terminal, before: Member) -> int:
    """Run what is not settled yet, and show what came of all."""
    for i, part in enumerate(state.parts):
        if part.status in SETTLED:
            continue
        left = None if state.budget_s is None else state.budget_s - state.spent_s
        view.say("")
        place = f"campaign {i + 1} of {len(state.parts)}: {name_of(part)}"
        if left is not None and part.took_s is None and left_out(part, left):
            why = f"expected {expected_of(part)}, {duration(max(0.0, left))} of the budget left"
            state = state.with_part(i, dataclasses.replace(part, status="left_out", why=why))
            write_state(directory, state)
            view.say(f"{place}: left out, {why}", "yellow")
            continue
        view.say(place, "bold")
        view.close()
        member = Member(cell_ended=before.cell_ended)
        try:
            state = _run_part(directory, state, i, member)
        finally:
            before = member
    view.say("")
    view.table(table(state))
    view.say(f"{standing(state)}: {directory}/")
    return state.exit_code


def _run_part(directory: Path, state: SweepState, index: int, member: Member) -> SweepState:
    """One campaign, from its beginning or from where it was; the sweep with what came of it."""
    runs_dir, part = directory.parent, state.parts[index]
    clock, before_s = time.monotonic(), part.took_s or 0.0
    words = part.overrides
    if part.campaign is not None and (runs_dir / part.campaign / rundir.PLAN).is_file():
        words = rundir.resume_words(runs_dir / part.campaign)
    else:
        part = dataclasses.replace(part, campaign=None)
    now = dataclasses.replace(part, status="running", why=None, exit_code=None, took_s=before_s)

    def keep(part: Part) -> SweepState:
        nonlocal now, state
        now = dataclasses.replace(part, took_s=before_s + time.monotonic() - clock)
        state = state.with_part(index, now)
        write_state(directory, state)
        return state

    def began(campaign: Path) -> None:
        keep(dataclasses.replace(now, campaign=campaign.name))

    member.sweep, member.began = part_of(state, index), began
    keep(now)
    try:
        code = run_campaign(words, member)
    except (Interrupted, KeyboardInterrupt) as e:
        keep(dataclasses.replace(now, status="interrupted", exit_code=130, why="by the user"))
        raise Interrupted(_interrupted(directory, state, index)) from e
    except UsageError as e:
        print(f"harness: error: {e}", file=sys.stderr)
        return keep(dataclasses.replace(now, status="refused", exit_code=2, why=str(e)))
    except DeviceBusy as e:
        # for the next as well: hours of campaigns would be given up within seconds
        keep(dataclasses.replace(now, status="stopped", exit_code=1, why=str(e)))
        raise DeviceBusy(
            f"campaign {index + 1} of {len(state.parts)} ({name_of(part)}): {e}; "
            f"what ran is kept; resume with: {rundir.resume_command(directory)}"
        ) from e
    except HarnessError as e:
        print(f"harness: error: {e}", file=sys.stderr)
        return keep(dataclasses.replace(now, status="stopped", exit_code=1, why=str(e)))
    except Exception as e:  # a fault of ours in one campaign is no reason to lose the others
        traceback.print_exc()
        why = f"a fault of the harness: {type(e).__name__}: {e}"
        return keep(dataclasses.replace(now, status="stopped", exit_code=1, why=why))
    drift, headline = _found(runs_dir / str(now.campaign))
    return keep(
        dataclasses.replace(now, status="ran", exit_code=code, drift=drift, headline=headline)
    )


def _found(campaign: Path) -> tuple[str | None, str | None]:
    """Drift and headline of its verdict."""
    from harness.analysis.verdict_words import headline

    try:
        verdict = read_as(CampaignVerdict, campaign / rundir.VERDICT)
    except DeviceError:
        return None, None
    return (None, None) if verdict is None else (verdict.drift.verdict, headline(verdict))


def _interrupted(directory: Path, state: SweepState, index: int) -> str:
    done = [name_of(p) for p in state.parts if p.status == "ran"]
    names = f" ({'; '.join(done)})" if done else ""
    return (
        f"interrupted in campaign {index + 1} of {len(state.parts)} "
        f"({name_of(state.parts[index])}); done: {len(done)}{names}; what was measured is kept; "
        f"resume with: {rundir.resume_command(directory)}"
    )
