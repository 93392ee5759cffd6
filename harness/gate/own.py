"""One campaign's own verdict, read as a gate: its baseline is the old build, say. Pure.

Both builds' cells stand side by side in it, minutes apart and in random order: the strong way.
"""

from __future__ import annotations

from harness.analysis.counters import drops
from harness.analysis.usable import no_speed
from harness.analysis.verdict_words import pairs_in_words
from harness.findings import Likeness
from harness.gate.comparable import settings_of
from harness.gate.nights import Night
from harness.gate.result import OUTPUT
from harness.gate.rule import Case, GateOutcome
from harness.verdicts import CandidateVerdict

METRIC = "tok_s"
_OF_OUTPUT: dict[Likeness, GateOutcome] = {
    "identical": "pass",
    "differs": "regression",
    "not shown": "none",
}


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
    if v.output is None or any(drops(r) for r in own):
        return []
    if v.output == "not shown" and not _same_settings(night, v):
        return []  # it was not to be equal
    outcome = _OF_OUTPUT[v.output]
    cells = (len(night.cells_of(v.baseline)), len(own))
    why = tuple(r for r in v.reasons if "output" in r.lower())
    return [Case(v.candidate, OUTPUT, outcome, cells=cells, reasons=why)]


def _same_settings(night: Night, v: CandidateVerdict) -> bool:
    arms = [night.plan.arms.get(name) for name in (v.candidate, v.baseline)]
    own, its = (None if arm is None else settings_of(arm) for arm in arms)
    return own == its


def _nothing_differs(night: Night, baseline: str, candidate: str) -> str | None:
    """One file as both engines, and one configuration: of a change of the engine that shows none.

    By the hash of what ran, as two builds may call themselves alike.
    """
    its, own = night.plan.arms.get(baseline), night.plan.arms.get(candidate)
    cells = [night.cells_of(a) for a in (baseline, candidate)]
    ran = {r.identity.engine_sha256 for some in cells for r in some}
    if its is None or own is None or not all(cells) or len(ran) != 1 or ran == {None}:
        return None
    if settings_of(its) != settings_of(own):
        return None
    return f"nothing differs: {baseline} and {candidate} ran the same build with the same settings"


def _case(night: Night, v: CandidateVerdict, margin_pct: float) -> Case:
    outcome, words = _outcome(night, v, margin_pct)
    failed = [w for r in night.cells_of(v.candidate) if not r.is_result for w in no_speed(r)]
    baseline = night.plan.baseline or v.baseline
    lost = [*night.lost_of(baseline), *night.lost_of(v.candidate)]
    same = _nothing_differs(night, baseline, v.candidate)
    few = [w for a in (baseline, v.candidate) if (w := night.mostly_lost(a)) is not None]
    if few or same is not None:
        outcome, words = "none", same or few[0]
    elif outcome != "regression" and (failed or lost):
        outcome, words = "none", (failed or lost)[0]
    own = [night.cells_of(baseline), night.cells_of(v.candidate)]
    used = [[r for r in cells if r.index in v.cells_used] for cells in own]
    return Case(
        arm=v.candidate,
        metric=METRIC,
        outcome=outcome,
        change_pct=v.effect_pct,
        interval_pct=v.ci_pct,
        cells=(len(used[0]), len(used[1])),
        reasons=tuple(dict.fromkeys((words, *failed, *lost, *v.reasons))),
        failed=bool(failed) and outcome == "none",
    )


def _outcome(night: Night, v: CandidateVerdict, margin_pct: float) -> tuple[GateOutcome, str]:
    said = f"{v.candidate} against {v.baseline}: {v.outcome.replace('_', ' ')}"
    if night.wrong is not None:
        return "none", f"{night.id}: {night.wrong}"
    if v.disturbed_pairs:
        return "none", f"{said}, from {' and '.join(pairs_in_words(v))}: a contaminated night"
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
