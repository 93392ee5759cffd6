"""From stored campaigns to the gate's answer, written beside the candidate. Reads `runs_dir`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from harness import rundir
from harness.configure import conf_dir, load_yaml
from harness.errors import DeviceError, HarnessError, UsageError
from harness.gate.compare import Question, compare
from harness.gate.ledger import (
    OWN,
    WIDEST_PCT,
    Kin,
    State,
    States,
    Wish,
    accept,
    kin_of,
    record,
)
from harness.gate.metrics import METRICS, Metric
from harness.gate.nights import Night, read_night
from harness.gate.own import METRIC, own_cases
from harness.gate.reading import measured_at_all, sound
from harness.gate.result import EXIT_CODES, OUTPUT, GateResult, Kind, headline, overall
from harness.gate.rule import Case
from harness.schema import VerdictConfig
from harness.typed import from_mapping, nearest

LAST_GREEN = "last-green"


class NotAccepted(HarnessError):  # noqa: N818 - what was asked for was not done
    """`--accept` made nothing green; no engine is accused."""

    exit_code = EXIT_CODES["none"]


@dataclass(frozen=True)
class Request:
    """What is asked. `baseline` None: the candidate's own verdict. `arms` None: all."""

    candidate: Path
    baseline: str | None
    metrics: tuple[Metric, ...]
    margin_pct: float
    runs_dir: Path
    arms: tuple[str, ...] | None = None
    accept: bool = False


def answer(request: Request) -> GateResult:
    """The answer, recorded in `gate.json` of the candidate.

    Raises UsageError where a campaign is not there or asked for what it cannot have. A damaged
    campaign is an answer: there is none.
    """
    try:
        night = read_night(request.candidate)
    except DeviceError as e:
        return unread(request, str(e))
    _check_arms(request, night)
    if request.accept:
        _check_acceptable(request, night)
    kin = kin_of(night, request.runs_dir)
    if request.baseline is None:
        return _own(request, night)
    if request.baseline == LAST_GREEN:
        baseline = kin.last_green(_wish(request, night))
        if baseline is None:
            return _first(request, night, kin)
    else:
        baseline = rundir.find_campaign(request.baseline, request.runs_dir, "--baseline ")
        if baseline.resolve() == request.candidate.resolve():
            raise UsageError(f"--baseline {request.baseline}: is the candidate itself")
    try:
        then = read_night(baseline)
    except DeviceError as e:
        return unread(request, str(e))
    if then.started_unix_s is not None and night.started_unix_s is not None:
        _check_order(then, night)
    return _compared(request, then, night, kin)


def _wish(request: Request, night: Night) -> Wish:
    return Wish(request.metrics, request.margin_pct, request.arms or night.arms)


def _check_order(then: Night, now: Night) -> None:
    """A gate looks forward: the other way round an engine that became worse would pass."""
    dates = [_date(n.started_unix_s or 0.0) for n in (then, now)]
    if then.same_cells(now):
        raise UsageError(
            f"--baseline {then.id} (began {dates[0]}): is the same campaign as the candidate "
            f"{now.id} (began {dates[1]}), or a copy of it"
        )
    if (now.started_unix_s or 0.0) < (then.started_unix_s or 0.0):
        raise UsageError(
            f"--candidate {now.id}: began {dates[1]}, before the baseline {then.id} ({dates[0]}); "
            "name the older one with --baseline"
        )


def _date(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(sep=" ", timespec="seconds")


def _check_acceptable(request: Request, night: Night) -> None:
    """What others are to be held against must have come to its end, and have been measured."""
    if night.wrong is not None:
        raise NotAccepted(f"--accept: not accepted: {night.id}: {night.wrong}")
    for metric in request.metrics:
        cells = [r for arm in request.arms or night.arms for r in night.cells_of(arm)]
        if not any(r.status == "ok" and metric.of(r) is not None for r in cells):
            raise NotAccepted(
                f"--accept: not accepted: {night.id} has no {metric.name} that others could be "
                "held against: no cell of it ended well and measured it"
            )


def _compared(request: Request, then: Night, now: Night, kin: Kin) -> GateResult:
    question = Question(
        metrics=request.metrics,
        margin_pct=request.margin_pct,
        settings=now.settings or default_settings(),
        differences=kin.differences(request.metrics),
        arms=request.arms,
    )
    cases = compare(then, now, question)
    new = [a for a in now.arms if a not in then.arms]
    notes = [f"{a} is not in the baseline campaign: nothing to compare it with" for a in new]
    if then.device is None and now.device is None:
        notes.append("neither campaign says which device it ran on: taken for the same")
    if not then.plan.arms and not now.plan.arms:
        notes.append("neither campaign has its settings on record: arms are known by their names")
    if set(then.builds) == set(now.builds) and then.builds:
        notes.append("both campaigns ran the same build of the engine")
    result = _result(request, "campaigns", now, cases, notes=[*notes, *kin.passed_over], then=then)
    return _recorded(request, now, result, _states(request, then, now, cases))


def _first(request: Request, night: Night, kin: Kin) -> GateResult:
    """Nothing was compared, so nothing passed; but the next campaign has something to go by."""
    problems = sound(night, request.metrics)
    notes = list(kin.passed_over)
    is_none = None if request.accept else _not_the_first(request, kin)
    if is_none is not None:
        words = is_none
    elif request.accept:
        words = "there is no green campaign to compare with yet; accepted as the first"
    elif (red := kin.regressed(request.metrics)) is not None:
        words = (
            f"there is no green campaign to compare with, only {red}, which regressed: so this one "
            "is not recorded as the first; --accept makes it one"
        )
    elif problems:
        words = "there is no green campaign to compare with yet, and this one cannot be the first"
    else:
        words = "there is no green campaign to compare with yet; recorded as the first"
    cases = tuple(
        Case(arm, metric.name, "none", reasons=(words, *problems))
        for arm in night.arms
        for metric in request.metrics
    )
    result = _result(request, "first", night, cases, notes=notes)
    if is_none is not None:
        return result
    return _recorded(request, night, result, _first_states(request, night, kin))


def _not_the_first(request: Request, kin: Kin) -> str | None:
    """Why there are others to hold it against, which are only not found here; so it is no first."""
    where = request.candidate.resolve().parent
    if where != request.runs_dir.resolve():
        return (
            f"there is no green campaign of its kind in {request.runs_dir}, and it lies elsewhere, "
            f"so it is not recorded as the first; use --runs-dir {where}"
        )
    if not kin.nights and kin.later:
        return (
            f"there is no campaign of its kind that began before it, but {kin.later} that began "
            "later, so it is not recorded as the first; was the device's clock right? Name one "
            "with --baseline"
        )
    return None


def _first_states(request: Request, night: Night, kin: Kin) -> States:
    """Of the metrics that were asked for; and of all others of which no earlier one is green:
    what was green before would be overruled by a night that nobody held against it.
    """
    found: dict[str, dict[str, State]] = {}
    for name, metric in METRICS.items():
        asked = metric in request.metrics
        if asked or kin.last_green(Wish([metric], WIDEST_PCT)) is None:
            red = kin.regressed([metric]) is not None
            states = {arm: _first_state(night, arm, metric, red=red) for arm in night.arms}
            if asked or "first" in states.values():
                found[name] = states
    return found


def _first_state(night: Night, arm: str, metric: Metric, *, red: bool) -> State:
    """`red`: an earlier one regressed, and what it was held against is gone."""
    if not measured_at_all(metric, arm, night):
        return "unmeasured"
    return "none" if red or sound(night, [metric], [arm]) else "first"


def _own(request: Request, night: Night) -> GateResult:
    other = [m.name for m in request.metrics if m.name != METRIC]
    if other:
        raise UsageError(
            f"--metric {other[0]}: a campaign's own verdict is about {METRIC}; name another "
            "campaign with --baseline"
        )
    if not night.verdict.verdicts and night.wrong is None:
        raise UsageError(
            f"--candidate {request.candidate}: compares nothing itself ({night.plan.design}); name "
            "another campaign with --baseline"
        )
    cases = own_cases(night, request.margin_pct, request.arms)
    if night.wrong is not None:
        cases = cases or (Case("-", METRIC, "none", reasons=(f"{night.id}: {night.wrong}",)),)
    result = replace(_result(request, "verdict", night, cases), builds=_builds_within(night))
    arms = {c.arm: [d for d in cases if d.arm == c.arm] for c in cases}
    states = {arm: _state(overall(own)) for arm, own in arms.items()}
    return _recorded(request, night, result, {OWN: states})


def _builds_within(night: Night) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of the baseline's cells and of the others."""
    then, now = (
        {
            str(r.identity.engine_build_id)
            for r in night.records
            if (r.arm == night.plan.baseline) is of_baseline and r.identity.engine_build_id
        }
        for of_baseline in (True, False)
    )
    return tuple(sorted(then)), tuple(sorted(now))


def _result(
    request: Request,
    kind: Kind,
    night: Night,
    cases: tuple[Case, ...],
    *,
    notes: Sequence[str] = (),
    then: Night | None = None,
) -> GateResult:
    verdict = overall(cases)
    baseline = None if then is None else then.id
    return GateResult(
        verdict=verdict,
        exit_code=0 if request.accept else EXIT_CODES[verdict],
        kind=kind,
        headline=headline(verdict, cases, request.margin_pct, baseline),
        baseline=baseline,
        candidate=night.id,
        experiment=night.experiment,
        margin_pct=request.margin_pct,
        metrics=tuple(m.name for m in request.metrics),
        cases=cases,
        notes=tuple(notes),
        builds=(() if then is None else then.builds, night.builds),
        accepted=request.accept,
    )


def _recorded(request: Request, night: Night, result: GateResult, states: States) -> GateResult:
    """Whatever cannot be written costs a note, never the answer; only accepting is to write."""
    if request.accept:
        try:
            red = accept(
                night,
                request.metrics,
                request.arms or night.arms,
                result.baseline,
                request.margin_pct,
            )
        except DeviceError as e:
            raise NotAccepted(f"--accept: not accepted: {e}") from e
        notes = [f"not accepted with it: {n} regressed; name it with --metric" for n in red]
        return replace(result, notes=(*result.notes, *notes))
    if request.arms is not None:
        words = "only some arms were asked for, so nothing is recorded in gate.json"
        return replace(result, notes=(*result.notes, words))
    try:
        red = record(
            night,
            states,
            baseline=result.baseline,
            margin_pct=request.margin_pct,
            compared=result.kind != "first",
        )
    except DeviceError as e:
        return replace(result, notes=(*result.notes, f"warning: not recorded: {e}"))
    notes = [f"its regression of {name}, found before, stands: it is not green" for name in red]
    return replace(result, notes=(*result.notes, *notes))


def _states(request: Request, then: Night, now: Night, cases: Sequence[Case]) -> States:
    """Of each metric and arm, with the output, which is nobody's own."""
    found: dict[str, dict[str, State]] = {}
    for metric in request.metrics:
        own = [c for c in cases if c.metric in (metric.name, OUTPUT)]
        # an arm that is new was compared with nothing
        found[metric.name] = dict.fromkeys(now.arms, "none")
        for arm in dict.fromkeys((*now.arms, *(c.arm for c in own))):
            its = [c for c in own if c.arm == arm]
            if any(c.metric == metric.name for c in its):
                found[metric.name][arm] = _state(overall(its))
            elif arm in then.arms and not measured_at_all(metric, arm, then, now):
                red = overall(its) == "regression"
                found[metric.name][arm] = "regression" if red else "unmeasured"
    return found


def _state(outcome: str) -> State:
    return "pass" if outcome == "pass" else "regression" if outcome == "regression" else "none"


def unread(request: Request, why: str) -> GateResult:
    """A campaign that is damaged, or could not be measured: no pass, and nobody is accused."""
    case = Case("-", request.metrics[0].name, "none", reasons=(why,))
    return GateResult(
        verdict="none",
        exit_code=EXIT_CODES["none"],
        kind="campaigns",
        headline=headline("none", [case], request.margin_pct, None),
        baseline=request.baseline,
        candidate=request.candidate.name if (request.candidate / rundir.PLAN).is_file() else "-",
        experiment="",
        margin_pct=request.margin_pct,
        metrics=tuple(m.name for m in request.metrics),
        cases=(case,),
    )


def _check_arms(request: Request, night: Night) -> None:
    for arm in request.arms or ():
        if arm not in night.arms:
            raise UsageError(f"--arm {arm}: not in {night.id}{nearest(arm, night.arms, 'arms')}")


def default_settings() -> VerdictConfig:
    """Of campaigns that were stored without."""
    where = conf_dir() / "verdict" / "default.yaml"
    return from_mapping(VerdictConfig, load_yaml(where), str(where))
