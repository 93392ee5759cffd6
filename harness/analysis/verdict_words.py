"""A verdict in a sentence, for whoever shows it. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from harness.analysis.identity import identity_in_words
from harness.analysis.levels import levels_passed
from harness.analysis.tables import MIB
from harness.findings import EvictionRow
from harness.verdicts import CampaignVerdict, CandidateVerdict, Drift, DriftVerdict, Outcome
from harness.words import counted

# of another build: beside whatever is said of its speed
OTHER_OUTPUT = "but its output differs"


def stalls_in_words(mean_pct: float, typical_pct: float) -> str:
    """Where the mean and the typical token do not tell the same effect (changes of tok/s)."""
    lives = abs(mean_pct) > abs(typical_pct)
    return (
        f"{'the effect lives in stalls' if lives else 'stalls hide a part of the effect'}: "
        f"{mean_pct:+.1f} % on the mean, {typical_pct:+.1f} % on the typical token"
    )


def numbers_in_words(v: CandidateVerdict) -> str:
    """`, -12.3 % tok/s (-14.0 to -10.2 %), p 0.0156, 7 clean pairs`: what the design gives."""
    parts = []
    if v.effect_pct is not None:
        interval = "" if v.ci_pct is None else f" ({v.ci_pct[0]:+.1f} to {v.ci_pct[1]:+.1f} %)"
        parts.append(f"{v.effect_pct:+.1f} % tok/s{interval}")
    if v.p is not None:
        parts.append(f"p {v.p:.4f}")
    parts += pairs_in_words(v)
    if v.output == "differs":
        parts.append(OTHER_OUTPUT)
    return "".join(f", {part}" for part in parts)


def pairs_in_words(v: CandidateVerdict) -> list[str]:
    """What the verdict rests on: `8 clean pairs`, `1 clean pair and 7 disturbed ones`."""
    if v.clean_pairs is None:
        return []
    disturbed = f" and {counted(v.disturbed_pairs, 'disturbed one')}" if v.disturbed_pairs else ""
    return [counted(v.clean_pairs, "clean pair") + disturbed]


# --- a whole campaign in one sentence -------------------------------------------------------------

_MOVED: dict[DriftVerdict, str] = {
    "drifting": "the device changed its speed meanwhile",
    "throttled": "the device throttled meanwhile",
}
_MOST_IN_FULL = 2
# a sentence that starts with these starts with a capital; one with a cell's name keeps the name
_OUR_WORDS = (
    *("nothing can be said", "provisionally, ", "it is not known whether "),
    *("at a cap of ", "without a cap ", "greedy output: "),
)
# what says nothing about a candidate, and why of several that have each their own reason
_SILENT: dict[Outcome, str] = {
    "contaminated": "the timing cannot be attributed to the changes",
    "unreadable": "no baseline cell can be compared with any of them",
}


def headline(verdict: CampaignVerdict) -> str:
    """What can be concluded from a campaign, in one sentence of plain text without a full stop."""
    identity = [identity_in_words(verdict.identity)] if verdict.identity else []
    if verdict.verdicts:
        said = [*_compared(verdict), *identity, *_moved(verdict.drift)]
    else:
        said = identity + _counted_only(verdict)
    first, *rest = said
    if first.startswith(_OUR_WORDS):
        first = first[0].upper() + first[1:]
    return "; ".join([first, *rest])


def _moved(drift: Drift) -> list[str]:
    if drift.verdict not in _MOVED:
        return []
    change = drift.sentinel_change_pct
    by = "" if change is None else f" ({change:+.1f} % between its baseline cells)"
    return [f"{_MOVED[drift.verdict]}{by}"]


def _compared(verdict: CampaignVerdict) -> list[str]:
    """A clause for each candidate; those about which nothing can be said share one."""
    told = [v for v in verdict.verdicts if v.outcome not in _SILENT]
    # of many, each is told in short
    clauses = [
        _candidate(v if len(told) <= _MOST_IN_FULL else _in_short(v)) + _other_output(v)
        for v in told
    ]
    for outcome, of_several in _SILENT.items():
        silent = [v for v in verdict.verdicts if v.outcome == outcome]
        if not silent:
            continue
        reasons = {_why(v, verdict.drift) for v in silent}
        why = reasons.pop() if len(reasons) == 1 else of_several
        clauses.append(f"nothing can be said about {_listed([v.candidate for v in silent])}: {why}")
    return clauses


def _other_output(v: CandidateVerdict) -> str:
    return f", {OTHER_OUTPUT}" if v.output == "differs" else ""


def _in_short(v: CandidateVerdict) -> CandidateVerdict:
    provisional = v.outcome in ("provisional_win", "provisional_loss")
    return dataclasses.replace(v, p=None, clean_pairs=v.clean_pairs if provisional else None)


def _candidate(v: CandidateVerdict) -> str:
    names = f"{v.candidate} is %s {v.baseline}"
    if v.outcome in ("win", "loss"):
        return f"{names % (_by_how_much(v) + ' than')}{_in_brackets(v)}"
    if v.outcome in ("provisional_win", "provisional_loss"):
        return (
            f"provisionally, {names % (_by_how_much(v) + ' than')}{_in_brackets(v)}, "
            "which is not enough cells to rely on"
        )
    if v.outcome == "equivalent":
        # the interval on record is of another error than this test, and may reach beyond the margin
        bare = dataclasses.replace(v, ci_pct=None)
        return f"{names % 'as fast as'}, within the margin{_in_brackets(bare, effect=True)}"
    if v.outcome == "confounded":
        return f"{v.candidate} cannot be compared with {v.baseline}: {_first(v.reasons)}"
    why = f": {_first(v.reasons)}" if v.reasons else ""
    asked = f"it is not known whether {names % 'faster than'}"
    return f"{asked}{_in_brackets(v, effect=True) if v.ci_pct else ''}{why}"


def _by_how_much(v: CandidateVerdict) -> str:
    """`12.3 % faster`; what rounds to nothing keeps a digit."""
    if v.effect_pct is None:
        return "faster" if v.outcome in ("win", "provisional_win") else "slower"
    size = abs(v.effect_pct)
    return (
        f"{size:.1f}" if size >= 0.05 else f"{size:.1g}"
    ) + f" % {'faster' if v.effect_pct > 0 else 'slower'}"


def _in_brackets(v: CandidateVerdict, *, effect: bool = False) -> str:
    """Interval, pairs and p, as far as the design gives them; `effect`: also the estimate."""
    parts = []
    if effect and v.effect_pct is not None:
        parts.append(f"{v.effect_pct:+.1f} %")
    if v.ci_pct is not None:
        parts.append(f"{v.ci_pct[0]:+.1f} to {v.ci_pct[1]:+.1f} %")
    parts += pairs_in_words(v)
    if (
        v.clean_pairs is None
        and v.effect_pct is not None
        and v.outcome in ("provisional_win", "provisional_loss")
    ):
        parts.append("one pair of cells")
    if v.p is not None and v.outcome != "equivalent":
        parts.append(f"p {v.p:.2g}")
    return f" ({', '.join(parts)})" if parts else ""


def _why(v: CandidateVerdict, drift: Drift) -> str:
    """Why nothing is said about a candidate."""
    # four cells: the drift's own reason says more than that it is unknown
    if drift.verdict == "unknown" and v.outcome == "unreadable" and drift.reasons:
        return f"the drift is not known ({_first(drift.reasons)})"
    said = _first(v.reasons)
    if v.outcome == "contaminated":
        return f"the timing cannot be attributed to the change ({said})"
    return said


def _first(reasons: Sequence[str]) -> str:
    return reasons[0] if reasons else "no reason is recorded"


def _counted_only(verdict: CampaignVerdict) -> list[str]:
    """Of campaigns in which no speeds are compared: what their counters found."""
    found = _least_read(verdict.eviction) + levels_passed(verdict.levels)
    if found or verdict.identity:
        return [*found, "speeds are not compared"]
    if not verdict.cells:
        return ["Nothing was measured"]
    failed = sum(c.status == "unusable" for c in verdict.cells)
    ran = counted(len(verdict.cells) - failed, "cell")
    return [
        f"{ran} ran",
        *([f"{failed} gave no speed"] if failed else []),
        "speeds are not compared: no cell repeats another to show the device's drift",
    ]


def _least_read(rows: Sequence[EvictionRow]) -> list[str]:
    """`at a cap of 94 MiB ls reads least, 5.6 % less per token than lru`, cap by cap."""
    said = []
    for cap in dict.fromkeys(r.cap_bytes for r in rows):
        own = [r for r in rows if (r.cap_bytes, r.status) == (cap, "ok") and r.read_vs_lru]
        if len(own) < 2:
            continue
        best = min(own, key=lambda r: r.read_vs_lru or 0.0)
        where = "without a cap" if cap is None else f"at a cap of {cap / MIB:g} MiB"
        less = (1 - (best.read_vs_lru or 0.0)) * 100
        if best.policy == "lru" or less <= 0:
            said.append(f"{where} no policy reads less than lru")
        else:
            said.append(f"{where} {best.policy} reads least, {less:.1f} % less per token than lru")
    return said


def _listed(names: Sequence[str]) -> str:
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last
