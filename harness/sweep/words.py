"""A sweep in words: the table of its campaigns, for a terminal and for Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from harness.analysis.tables import Column, Data
from harness.gate.markdown import escaped
from harness.sweep.state import Part, SweepState
from harness.words import counted, duration

_STATUS = {
    "planned": "not yet begun",
    "running": "under way, or killed",
    "stopped": "stopped",
    "refused": "not started",
    "interrupted": "interrupted",
    "left_out": "left out",
}


def name_of(part: Part) -> str:
    """What sets a campaign apart; alone in its sweep it is its experiment."""
    return " ".join(part.varied) or part.experiment


def result_of(part: Part) -> str:
    """The verdict in a sentence, or why there is none."""
    if part.status == "ran":
        return part.headline or "no verdict: verdict.json cannot be read"
    return _STATUS[part.status] + (f": {part.why}" if part.why else "")


def took_of(part: Part) -> str | None:
    """`3 min 20 s`; None: did not begin."""
    return None if part.took_s is None else duration(part.took_s)


def expected_of(part: Part) -> str | None:
    """Of cells whose like ran before, and how many there are besides; None: not foreseen."""
    if part.expected_s is None:
        return None
    unknown = part.unknown_cells or 0
    beside = f" + {counted(unknown, 'cell')} unknown" if unknown else ""
    return duration(part.expected_s) + beside


def table(state: SweepState) -> Data:
    """One row a campaign."""
    return Data(
        (
            Column("index", "", "d"),
            Column("varied", "campaign"),
            Column("result", "what it found"),
            Column("drift", "drift"),
            Column("expected", "expected"),
            Column("took", "took"),
            Column("exit_code", "exit", "d"),
            Column("campaign", "directory"),
        ),
        tuple(
            (
                i + 1,
                name_of(p),
                result_of(p),
                p.drift,
                expected_of(p),
                took_of(p),
                p.exit_code,
                p.campaign,
            )
            for i, p in enumerate(state.parts)
        ),
    )


def time_in_words(parts: Iterable[Part]) -> str:
    """Of all campaigns together, as far as it is known."""
    some = list(parts)
    known = sum(p.expected_s or 0.0 for p in some)
    unknown = sum(p.unknown_cells or 0 for p in some)
    beside = f" of waits and cells that ran before; {counted(unknown, 'cell')} unknown"
    return f"time expected: {duration(known)}{beside if unknown else ', by earlier campaigns'}"


def standing(state: SweepState) -> str:
    """`2 of 6 ran, 1 failed, 1 left out`: how far a sweep came."""
    ran = [p for p in state.parts if p.status == "ran"]
    said = [f"{len(ran)} of {counted(len(state.parts), 'campaign')} ran"]
    for words, n in (
        ("with cells that failed", sum(p.exit_code != 0 for p in ran)),
        ("stopped", sum(p.status == "stopped" for p in state.parts)),
        ("not started", sum(p.status == "refused" for p in state.parts)),
        ("left out", sum(p.status == "left_out" for p in state.parts)),
    ):
        said += [f"{n} {words}"] if n else []
    return ", ".join(said)


def markdown(state: SweepState) -> str:
    """The table for a pull request or a CI's summary."""
    budget = "" if state.budget_s is None else f" of {duration(state.budget_s)}"
    lines = [
        f"### {escaped(state.name)}: {standing(state)}",
        "",
        f"{duration(state.spent_s)}{budget}, sweep `{state.id}`",
        "",
    ]
    data = table(state)
    lines.append("| " + " | ".join(c.title for c in data.columns) + " |")
    lines.append("|" + " --- |" * len(data.columns))
    for row in data.rows:
        lines.append("| " + " | ".join("" if v is None else escaped(str(v)) for v in row) + " |")
    return "\n".join(lines) + "\n"
