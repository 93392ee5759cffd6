"""Measuring for the gate: the baseline's engine and the present one in one campaign, pair by pair.

That is the strong way: both stand minutes apart in random order, so that the day is the same. Where
the baseline's engine is not to be had any more its experiment is run anew, and held against it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import rundir
from harness.build import cached_engine
from harness.build.programs import describe
from harness.configure import compose, load_yaml, resolved
from harness.errors import HarnessError, UsageError
from harness.gate.answer import LAST_GREEN, Request, answer
from harness.gate.ledger import Wish, newest_green
from harness.gate.metrics import METRICS
from harness.gate.nights import Night, read_night
from harness.gate.own import METRIC
from harness.gate.result import GateResult
from harness.journal import read_journal
from harness.judgement import CREATED
from harness.memory_config import as_said_now
from harness.typed import nearest

RunCampaign = Callable[[Sequence[str]], int]
# the two cells of the campaign that is run
WAS, NOW = "was", "now"
# of the baseline's command line, what this campaign has of its own; groups and single keys
_OWN_GROUPS = ("cells", "~cells", "design", "runs_dir", "resume", "plan_only", "name")
# what may be otherwise than it was: which engine, where things are kept, how it is judged
_FREE = ("cells", "design", "name", "runs_dir", "tracking", "engine", "build", "verdict", "session")
_FREE_ANEW = tuple(k for k in _FREE if k not in ("cells", "design"))


@dataclass(frozen=True)
class Wanted:
    """What is to be run, and why in this way; `interleaved`: the result is its own verdict."""

    overrides: tuple[str, ...]
    interleaved: bool
    note: str


def run_and_answer(
    request: Request, overrides: Sequence[str], run_campaign: RunCampaign
) -> GateResult:
    """Run what the baseline asks for (`request.candidate` is not read), and judge it.

    Raises UsageError where that cannot be composed, and whatever the campaign raises.
    """
    other = [m.name for m in request.metrics if m.name != METRIC]
    if other:
        raise UsageError(
            f"--metric {other[0]}: a campaign that is run is judged by its own verdict, on "
            f"{METRIC}; name a campaign with --candidate"
        )
    assert request.baseline is not None  # noqa: S101 - the command line was checked
    baseline = _find(request)
    night = read_night(baseline)
    wanted = _wanted(night, baseline, request, overrides)
    before = _campaigns(request.runs_dir)
    code = run_campaign(wanted.overrides)
    made = [
        d for d in sorted(_campaigns(request.runs_dir) - before) if _asked_by(d, wanted.overrides)
    ]
    if not made:
        raise UsageError(f"no campaign was made in {request.runs_dir} (exit code {code})")
    result = answer(
        replace(
            request,
            candidate=made[-1],
            baseline=None if wanted.interleaved else str(baseline),
            arms=None,
        )
    )
    return replace(result, notes=(wanted.note, *result.notes))


def _find(request: Request) -> Path:
    if request.baseline != LAST_GREEN:
        return rundir.find_campaign(str(request.baseline), request.runs_dir, "--baseline ")
    wish = Wish([METRICS[METRIC]], request.margin_pct, request.arms)
    found = newest_green(request.runs_dir, wish)
    if found is None:
        raise UsageError(
            f"--baseline {LAST_GREEN}: no campaign in {request.runs_dir} has passed; name one, or "
            "gate one with --candidate first"
        )
    return found


def _wanted(night: Night, baseline: Path, request: Request, overrides: Sequence[str]) -> Wanted:
    stored = as_said_now(load_yaml(baseline / rundir.CONFIG))
    words = _words(baseline)
    if words is None or not isinstance(stored, Mapping) or "import" in stored:
        raise UsageError(
            f"--baseline {night.id}: was not run from a command line here, so there is nothing to "
            "run again; name a campaign with --candidate"
        )
    where = f"runs_dir={rundir.as_value(str(request.runs_dir))}"
    arm = _arm(night, request)
    old = None if arm is None else _engine(night, arm, stored)
    if arm is not None and old is not None:
        kept = _of_present([w for w in words if not _is_of(w, _OWN_GROUPS)], stored)
        _same_as_stored(kept, words, stored, _FREE)
        settings = {k: v for k, v in stored["cells"][arm].items() if k != "binary"}
        cells = {WAS: {**settings, "binary": str(old)}, NOW: settings}
        own = (
            "design=pairs",
            f"design.baseline={WAS}",
            f"design.candidates=[{NOW}]",
            f"cells={hydra_value(cells)}",
            f"name={stored['name']}_builds"[:64],
        )
        note = f"{NOW} is the present engine, {WAS} that of {night.id} ({old}), both as its {arm}"
        return Wanted((*kept, *own, where, *overrides), True, note)
    kept = [w for w in words if not _is_of(w, ("runs_dir", "resume", "plan_only"))]
    kept = _of_present(kept, stored)
    _same_as_stored(kept, words, stored, _FREE_ANEW)
    builds = ", ".join(night.builds) or "an unknown one"
    if arm is None:
        why = f"{night.id} compares nothing (choose an arm with --arm to run builds in pairs)"
    else:
        why = f"the engine of {night.id} ({builds}) is not to be had here any more"
    note = f"{why}, so its experiment was run anew with the present engine"
    return Wanted((*kept, where, *overrides), False, note)


def _arm(night: Night, request: Request) -> str | None:
    """Whose settings both builds are run with."""
    known = [a for a in night.arms if a in night.plan.arms]
    for name in request.arms or ():
        if name not in known:
            raise UsageError(f"--arm {name}: not in {night.id}{nearest(name, known, 'arms')}")
    if request.arms is not None and len(request.arms) > 1:
        raise UsageError("--arm: one arm is run as both builds; name one")
    arm = request.arms[0] if request.arms else night.plan.baseline
    of_levels = arm is not None and night.plan.arms[arm].level is not None
    return None if of_levels else arm


def _engine(night: Night, arm: str, stored: Mapping[str, Any]) -> Path | None:
    """The engine that the arm ran, unaltered: where it was given, or from the cache of builds."""
    builds = {r.identity.engine_build_id for r in night.cells_of(arm)} - {None}
    if len(builds) != 1:
        return None
    (build,) = builds
    engine = stored.get("engine") or {}
    given = stored["cells"][arm].get("binary") or engine.get("binary")
    if given is not None:
        path = Path(given)
        try:
            return path.absolute() if path.is_file() and describe(path)[1] == build else None
        except HarnessError:  # of another processor, say
            return None
    cache = engine.get("cache_dir")
    found = cached_engine(str(build), None if cache is None else Path(cache))
    return None if found is None else found.engine


def _same_as_stored(
    kept: Sequence[str], words: Sequence[str], stored: Mapping[str, Any], free: Sequence[str]
) -> None:
    """The command line must still mean what it meant: experiments and defaults are files."""
    now = resolved(compose(list(words)))
    changed = rundir.difference(
        {k: v for k, v in stored.items() if k not in free},
        {k: v for k, v in now.items() if k not in free},
    )
    # a key that a later version has, at its default, changes nothing of what was
    changed = [line for line in changed if ": (absent) -> " not in line]
    if changed:
        raise UsageError(
            f"the baseline's command line ({' '.join(kept)}) means something else now: "
            f"{'; '.join(changed[:3])}; run the experiment anew, and name it with --candidate"
        )


def _words(directory: Path) -> list[str] | None:
    """The command line that made the campaign; None where there was none."""
    created = next((e for e in read_journal(directory) if e.event == CREATED), None)
    words = None if created is None else created.data.get("overrides")
    return [str(w) for w in words] if isinstance(words, list) else None


def _of_present(words: Sequence[str], stored: Mapping[str, Any]) -> list[str]:
    """Without the engines that were given: those are of then, and what is gated is of now."""
    kept: list[str] = []
    for word in words:
        key = word.lstrip("+").partition("=")[0]
        if key in ("engine.binary", "cell.binary"):
            continue
        if key.startswith("cells.") and key.endswith(".binary"):  # it may be all that the cell has
            kept.append(word.partition("=")[0] + "=null")
        else:
            kept.append(word)
    if any(_is_of(w, ("cells",)) and "{" in w and "binary" in w for w in kept):
        given = [name for name, cell in stored["cells"].items() if cell.get("binary") is not None]
        kept += [f"++cells.{name}.binary=null" for name in given]
    return kept


def _is_of(word: str, groups: Sequence[str]) -> bool:
    key = word.lstrip("+").partition("=")[0]
    return key.partition(".")[0] in groups


def _campaigns(runs_dir: Path) -> set[Path]:
    return {p.parent for p in runs_dir.glob(f"*/{rundir.PLAN}")}


def _asked_by(directory: Path, overrides: Sequence[str]) -> bool:
    """Another process may have made one meanwhile."""
    try:
        return _words(directory) == list(overrides)
    except HarnessError:
        return False


def hydra_value(value: Any) -> str:
    """Plain data as Hydra's grammar reads it on a command line."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k}:{hydra_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(hydra_value, value)) + "]"
    if isinstance(value, str):
        return rundir.quoted(value)
    return json.dumps(value)
