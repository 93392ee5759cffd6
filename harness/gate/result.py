"""What the gate found, and how it says so in one line. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.gate.rule import Case, GateOutcome
from harness.words import counted

# neither XML 1.0 nor a terminal can take these: control characters, halves of characters
_NOT_TEXT = re.compile(r"[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# what the cases come from: two campaigns, the candidate's own verdict, or nothing to compare with
Kind = Literal["campaigns", "verdict", "first"]
EXIT_CODES: dict[GateOutcome, int] = {"pass": 0, "regression": 1, "none": 3}
OUTCOME_WORDS: dict[GateOutcome, str] = {
    "pass": "pass",
    "regression": "regression",
    "none": "no readable verdict",
}
OUTPUT = "output"


@dataclass(frozen=True)
class GateResult:
    """`--json` prints exactly this. `accepted`: by hand, whatever the verdict; then it passes.

    `builds`: of the engine, then and now. `notes`: what concerns no single case.
    """

    verdict: GateOutcome
    exit_code: int
    kind: Kind
    headline: str
    baseline: str | None
    candidate: str
    experiment: str
    margin_pct: float
    metrics: tuple[str, ...]
    cases: tuple[Case, ...]
    notes: tuple[str, ...] = ()
    builds: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    accepted: bool = False


def overall(cases: Sequence[Case]) -> GateOutcome:
    """A regression anywhere is one; otherwise a case without an answer leaves all without."""
    outcomes = {c.outcome for c in cases}
    if "regression" in outcomes:
        return "regression"
    return "none" if "none" in outcomes or not outcomes else "pass"


def headline(
    verdict: GateOutcome, cases: Sequence[Case], margin_pct: float, baseline: str | None
) -> str:
    """`Regression: spec2 tok_s -12.0 % (-14.1 to -9.8 %)`: one sentence without a full stop."""
    shown = [c for c in cases if c.outcome == verdict]
    against = "" if baseline is None else f" against {baseline}"
    if verdict == "pass":
        arms = list(dict.fromkeys(c.arm for c in shown))
        which = f"{', '.join(arms)} {'is' if len(arms) == 1 else 'are'}"
        return f"Pass: {which} not worse by more than {margin_pct:g} %{against}"
    if verdict == "regression":
        return f"Regression{against}: {'; '.join(_in_short(c) for c in shown)}"
    first = next((c.reasons[0] for c in shown if c.reasons), "nothing could be compared")
    more = f" ({counted(len(shown), 'case')} of {len(cases)})" if len(cases) > 1 else ""
    return f"No readable verdict{against}: {first}{more}"


def _in_short(case: Case) -> str:
    if case.metric == OUTPUT:
        return f"{case.arm} generates another output ({case.reasons[0]})"
    return f"{case.arm} {case.metric}{change_in_words(case)}"


def change_in_words(case: Case) -> str:
    """` -12.0 % (-14.1 to -9.8 %)`, or from what to what where no percentage can be given."""
    if case.change_pct is None:
        if case.baseline is None or case.candidate is None:
            return ""
        return f" {case.baseline:g} then, {case.candidate:g} now"
    interval = ""
    if case.interval_pct is not None:
        interval = f" ({case.interval_pct[0]:+.1f} to {case.interval_pct[1]:+.1f} %)"
    return f" {case.change_pct:+.1f} %{interval}"


def clean(text: str) -> str:
    """What an engine said may hold anything; here it is text."""
    return _NOT_TEXT.sub("?", text)
