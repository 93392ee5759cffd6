"""From stored campaigns to the gate's answer, written beside the candidate. Reads `runs_dir`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness import rundir
from harness.configure import conf_dir, load_yaml
from harness.errors import DeviceError, UsageError
from harness.gate.compare import Question, compare
from harness.gate.ledger import Kin, State, kin_of, record
from harness.gate.metrics import Metric
from harness.gate.nights import Night, read_night
from harness.gate.own import METRIC, own_cases
from harness.gate.reading import sound
from harness.gate.result import EXIT_CODES, OUTPUT, GateResult, Kind, headline, overall
from harness.gate.rule import Case
from harness.schema import VerdictConfig
from harness.typed import from_mapping, nearest

LAST_GREEN = "last-green"
# in gate.json: what a campaign's own verdict said, beside the entries of metrics
OWN = "verdict"


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
    kin = kin_of(night, request.runs_dir)
    if request.baseline is None:
        return _own(request, night)
    if request.baseline == LAST_GREEN:
        baseline = kin.last_green(request.metrics)
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
    return _compared(request, then, night, kin)


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
    return _recorded(request, now, result, _states(request, cases))


def _first(request: Request, night: Night, kin: Kin) -> GateResult:
    """Nothing was compared, so nothing passed; but the next campaign has something to go by."""
    problems = sound(night, request.metrics)
    notes = list(kin.passed_over)
    state: State = "none" if problems else "first"
    if request.accept:
        words = "there is no green campaign to compare with yet; accepted as the first"
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
    return _recorded(
        request, night, result, dict.fromkeys((m.name for m in request.metrics), state)
    )


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
    return _recorded(request, night, result, {OWN: _state(overall(cases))})


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


def _recorded(
    request: Request, night: Night, result: GateResult, states: Mapping[str, State]
) -> GateResult:
    """Whatever cannot be written costs a note, never the answer."""
    if request.arms is not None and not request.accept:
        words = "only some arms were asked for, so nothing is recorded in gate.json"
        return replace(result, notes=(*result.notes, words))
    try:
        record(
            night,
            dict.fromkeys(states, "accepted") if request.accept else states,
            baseline=result.baseline,
            margin_pct=request.margin_pct,
            accept=request.accept,
        )
    except DeviceError as e:
        return replace(result, notes=(*result.notes, f"warning: not recorded: {e}"))
    return result


def _states(request: Request, cases: Sequence[Case]) -> dict[str, State]:
    """Of each metric, with the output, which is nobody's own."""
    output = [c for c in cases if c.metric == OUTPUT]
    return {
        m.name: _state(overall([c for c in cases if c.metric == m.name] + output))
        for m in request.metrics
    }


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
