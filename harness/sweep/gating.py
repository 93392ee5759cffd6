"""The gate for every campaign of a sweep: each against the last green one of its experiment.

Reads the campaigns through `harness.gate`, which keeps its answers beside them; writes JUnit XML
and one Markdown page where it is told to.
"""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from pathlib import Path

from harness import rundir
from harness.errors import HarnessError
from harness.gate.answer import LAST_GREEN, Request, answer
from harness.gate.junit import junit_xml
from harness.gate.markdown import escaped
from harness.gate.markdown import markdown as page_of
from harness.gate.metrics import metrics_named
from harness.gate.result import OUTCOME_WORDS, GateResult
from harness.gate.rule import GateOutcome
from harness.journal import write_atomically
from harness.judgement import stored_plan
from harness.schema import COMPARING
from harness.sweep.state import Part, SweepState
from harness.sweep.words import name_of, result_of
from harness.words import counted

PAGE, ANSWERS = "gate.md", "gate.json"
# of designs that compare speeds, and of those whose speeds nothing shows to be comparable: what was
# read repeats to the byte there
SPEED, WORK = "tok_s", "bytes_per_token"


@dataclass(frozen=True)
class Gated:
    """One campaign's answer; `result` None: there is no campaign to ask, for `headline`.

    `failed`: it did not come to its end, or cells of it ended badly.
    """

    campaign: str
    experiment: str
    verdict: GateOutcome
    headline: str
    result: GateResult | None = None
    failed: bool = False


def gate_all(
    runs_dir: Path, state: SweepState, *, baseline: str, margin_pct: float
) -> tuple[Gated, ...]:
    """Every campaign that began, in order; one that was left out is nobody's fault, and absent.

    Raises UsageError where there is no such baseline.
    """
    if baseline != LAST_GREEN:
        rundir.find_campaign(baseline, runs_dir, "--gate ")
    begun = [p for p in state.parts if p.status not in ("left_out", "planned")]
    return tuple(_gated(runs_dir, part, baseline, margin_pct) for part in begun)


def _gated(runs_dir: Path, part: Part, baseline: str, margin_pct: float) -> Gated:
    name = name_of(part)
    if part.status != "ran" or part.campaign is None:
        why = f"No readable verdict: {result_of(part)}"
        return Gated(name, part.experiment, "none", why, failed=True)
    campaign = runs_dir / part.campaign
    try:
        metric = SPEED if stored_plan(campaign).design in COMPARING else WORK
        request = Request(
            # not by its id, which may also be that of a copy in the directory one is in
            candidate=rundir.find_campaign(str(campaign), runs_dir, "--candidate "),
            baseline=baseline,
            metrics=metrics_named([metric]),
            margin_pct=margin_pct,
            runs_dir=runs_dir,
        )
        result = answer(request)
    except (HarnessError, OSError, ValueError) as e:  # one that cannot be read loses no other
        return Gated(name, part.experiment, "none", f"No readable verdict: {e}", failed=True)
    failed = any(c.failed for c in result.cases)
    return Gated(name, part.experiment, result.verdict, result.headline, result, failed)


def exit_code(gated: tuple[Gated, ...]) -> int:
    """1: a regression anywhere. 0: none, and something passed. 3: nothing could be read, or one of
    them failed: an engine that crashes in one experiment is not good for what it did in others.
    """
    verdicts = {g.verdict for g in gated}
    if "regression" in verdicts:
        return 1
    return 0 if "pass" in verdicts and not any(g.failed for g in gated) else 3


def standing(gated: tuple[Gated, ...]) -> str:
    """`1 regression, 3 passed, 2 without a readable verdict`."""
    n = {v: sum(g.verdict == v for g in gated) for v in OUTCOME_WORDS}
    said = [counted(n["regression"], "regression")] if n["regression"] else []
    said += [f"{n['pass']} passed"] if n["pass"] else []
    said += [f"{n['none']} without a readable verdict"] if n["none"] else []
    return ", ".join(said) or "no campaign began"


def write(directory: Path, state: SweepState, gated: tuple[Gated, ...]) -> list[Path]:
    """One page, all answers as JSON, and JUnit XML for each; their paths."""
    from harness.jsonable import to_json

    written = [directory / PAGE, directory / ANSWERS]
    write_atomically(written[0], page(state, gated).encode())
    facts = {"sweep": state.id, "exit_code": exit_code(gated), "campaigns": to_json(gated)}
    write_atomically(written[1], json.dumps(facts, indent=1).encode() + b"\n")
    for i, one in enumerate(gated):
        if one.result is not None:
            written.append(directory / f"junit-{i + 1:02d}-{one.experiment}.xml")
            write_atomically(written[-1], junit_xml(one.result))
    return written


def page(state: SweepState, gated: tuple[Gated, ...]) -> str:
    """Regressions first, in full; the rest is folded away."""
    lines = [f"## {escaped(state.name)}: {standing(gated)}", ""]
    order: tuple[GateOutcome, ...] = ("regression", "none", "pass")
    for one in sorted(gated, key=lambda g: order.index(g.verdict)):
        if one.result is None or one.result.kind == "first":  # there is nothing to show but why
            lines += [f"- {escaped(one.campaign)}: {escaped(one.headline)}", ""]
        elif one.verdict == "regression":
            lines += [f"**{escaped(one.campaign)}**", "", page_of(one.result), ""]
        else:
            # within a tag of HTML, Markdown's escapes do not hold
            title = html.escape(f"{one.campaign}: {OUTCOME_WORDS[one.verdict]}")
            lines += [f"<details><summary>{title}</summary>", "", page_of(one.result)]
            lines += ["</details>", ""]
    return "\n".join(lines)
