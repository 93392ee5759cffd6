"""The gate in Markdown, for a pull request or $GITHUB_STEP_SUMMARY. Pure."""

from __future__ import annotations

import re

from harness.gate.result import OUTCOME_WORDS, GateResult, clean
from harness.gate.rule import Case
from harness.words import counted

_MARKS = {"pass": "✅", "regression": "❌", "none": "⚪"}
# what would be read as markup, or end a table's cell
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~$@])")


def markdown(result: GateResult) -> str:
    """Headline, table, and why."""
    lines = [f"### {_MARKS[result.verdict]} {escaped(result.headline)}", ""]
    if result.accepted:
        lines += ["Accepted by hand: the next campaigns are compared with this one.", ""]
    lines += [_about(result), ""]
    if result.cases:
        lines += [
            "| arm | metric | then | now | change | interval | cells | |",
            "|---|---|--:|--:|--:|--:|--:|---|",
            *(_row(c) for c in result.cases),
            "",
        ]
    for case in result.cases:
        if case.outcome != "pass":
            lines.append(
                f"**{escaped(case.arm)}, {escaped(case.metric)}**: {OUTCOME_WORDS[case.outcome]}"
            )
            lines += ["", *(f"- {escaped(r)}" for r in case.reasons), ""]
    passed = [c for c in result.cases if c.outcome == "pass" and c.reasons]
    if passed:
        words = counted(len(passed), "case")
        lines += [f"<details><summary>why {words} passed</summary>", ""]
        for c in passed:
            lines.append(
                f"- {escaped(c.arm)}, {escaped(c.metric)}: {escaped('; '.join(c.reasons))}"
            )
        lines += ["", "</details>", ""]
    lines += [f"- {escaped(n)}" for n in result.notes]
    return "\n".join(lines).rstrip() + "\n"


def _about(result: GateResult) -> str:
    then, now = (", ".join(b) or "not known" for b in result.builds)
    words = [f"Candidate `{result.candidate}`, engine {escaped(now)}"]
    if result.baseline is not None:
        words.append(f"baseline `{result.baseline}`, engine {escaped(then)}")
    return f"{'; '.join(words)}; margin {result.margin_pct:g} %."


def _row(case: Case) -> str:
    change = "-" if case.change_pct is None else f"{case.change_pct:+.1f} %"
    interval = "-"
    if case.interval_pct is not None:
        interval = f"{case.interval_pct[0]:+.1f} to {case.interval_pct[1]:+.1f} %"
    cells = [
        escaped(case.arm),
        escaped(case.metric),
        number(case.baseline),
        number(case.candidate),
        change,
        interval,
        f"{case.cells[0]} / {case.cells[1]}",
        f"{_MARKS[case.outcome]} {OUTCOME_WORDS[case.outcome]}",
    ]
    return f"| {' | '.join(cells)} |"


def number(value: float | None) -> str:
    """With the digits that matter; `-` where it was not measured."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100_000 else f"{value:.5g}"


def escaped(text: str) -> str:
    """As plain text on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(clean(text).split()))
