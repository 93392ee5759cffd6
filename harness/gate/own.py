"""One campaign's own verdict, read as a gate: its baseline is the old build, say. Pure.

Both builds' cells stand side by side in it, minutes apart and in random order: the strong way.
"""

from __future__ import annotations

from harness.analysis.counters import drops
from harness.analysis.usable import no_speed
from harness.gate.nights import Night
from harness.gate.result import OUTPUT
from harness.gate.rule import Case, GateOutcome
from harness.verdicts import CandidateVerdict

METRIC = "tok_s"


def own_cases(
    night: Night, margin_pct: float, arms: tuple[str, ...] | None = None
) -> tuple[Case, ...]:
    """A case for each candidate, and for its output where it ran another build of the engine.

    None where the campaign compares nothing.
    """
    cases: list[Case] = []
    for v in night.verdict.verdicts:
        if arms is None or v.candidate in arms:
            cases += [_case(night, v, margin_pct), *_output(night, v)]
    return tuple(cases)


def _output(night: Night, v: CandidateVerdict) -> list[Case]:
    """Of two builds with equal settings; what is dropped depends on which experts each keeps."""
    own = night.cells_of(v.candidate)
    if v.output not in ("identical", "differs") or any(drops(r) for r in own):
        return []
    outcome: GateOutcome = "pass" if v.output == "identical" else "regression"
    cells = (len(night.cells_of(v.baseline)), len(own))
    why = tuple(r for r in v.reasons if "output" in r.lower())
    return [Case(v.candidate, OUTPUT, outcome, cells=cells, reasons=why)]


def _case(night: Night, v: CandidateVerdict, margin_pct: float) -> Case:
    outcome, words = _outcome(night, v, margin_pct)
    failed = [
        w
        for r in night.cells_of(v.candidate)
        if r.status in ("failed", "refused")
        for w in no_speed(r)
    ]
    if failed and outcome != "regression":
        outcome, words = "none", failed[0]
    baseline = night.plan.baseline or v.baseline
    own = [night.cells_of(baseline), night.cells_of(v.candidate)]
    used = [[r for r in cells if r.index in v.cells_used] for cells in own]
    return Case(
        arm=v.candidate,
        metric=METRIC,
        outcome=outcome,
        change_pct=v.effect_pct,
        interval_pct=v.ci_pct,
        cells=(len(used[0]), len(used[1])),
        reasons=(words, *v.reasons),
        failed=bool(failed) and outcome == "none",
    )


def _outcome(night: Night, v: CandidateVerdict, margin_pct: float) -> tuple[GateOutcome, str]:
    said = f"{v.candidate} against {v.baseline}: {v.outcome.replace('_', ' ')}"
    if night.wrong is not None:
        return "none", f"{night.id}: {night.wrong}"
    if v.outcome == "loss" and v.effect_pct is not None:
        beyond = v.effect_pct < -margin_pct
        words = f"{said}, {'beyond' if beyond else 'within'} the margin of {margin_pct:g} %"
        return ("regression" if beyond else "pass"), words
    if v.outcome == "equivalent":
        asked = night.settings.margin_pct if night.settings is not None else margin_pct
        sure = asked <= margin_pct or (v.ci_pct is not None and v.ci_pct[0] >= -margin_pct)
        wider = "" if sure else f", which is wider than the margin of {margin_pct:g} %"
        return ("pass" if sure else "none"), f"{said} within {asked:g} %{wider}"
    if v.outcome.startswith("provisional"):
        return "none", f"{said}, which is never final evidence"
    return ("pass" if v.outcome == "win" else "none"), said
