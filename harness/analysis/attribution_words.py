"""What carries an effect, in words, and the table of its parts. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.tables import MIB, Column, Data
from harness.analysis.wall_parts import CellParts
from harness.verdicts import AttributionRow, Part

# of the wall time: a part whose whole interval is within it is called unchanged
UNCHANGED_WITHIN = 0.03
# of the wall time: what can be told from 0 but is not worth a word
NEGLIGIBLE = 0.005
# of all change: a part that is larger was made up for in part by others
OVERSHOOT = 1.02
# cells of one arm that agree so far did equal work: the rule by which pairs are compared
EQUAL_WORK_WITHIN = 0.001
# a share that changed by less is not worth a word
LEAST_SHARE_CHANGE = 0.001

IN_WORDS: dict[Part, str] = {
    "reading": "reading",
    "waiting": "waiting for reads",
    "computing": "computing",
    "managing": "managing the cache",
    "faulting": "page faults",
}


@dataclass(frozen=True)
class Change:
    """Milliseconds (or a count) per token; `ci` None: there is one pair only, or too few.

    `baseline`: the mean of its cells.
    """

    baseline: float
    change: float
    ci: tuple[float, float] | None

    @property
    def told(self) -> bool:
        """The interval excludes 0."""
        return excludes_zero(self.ci)


def excludes_zero(ci: tuple[float, float] | None) -> bool:
    return ci is not None and (ci[0] > 0 or ci[1] < 0)


def work_in_words(baseline: Sequence[CellParts], candidate: Sequence[CellParts]) -> str | None:
    """How bytes, hits and drops changed; None where nothing was counted.

    Counters repeat exactly where the engine is deterministic; where cells of one arm differ, it is
    said that these are means.
    """
    said = []
    read = _both(baseline, candidate, "read_bytes")
    if read:
        b, c, exact = read
        mean = "" if exact else " on average"
        if b == c or abs(c - b) <= EQUAL_WORK_WITHIN * b:
            said.append(f"bytes per token equal{mean}")
        else:
            change = f"{(c / b - 1) * 100:+.3g} % bytes per token" if b > 0 else "bytes per token"
            said.append(f"{change}{mean} ({b / MIB:.4g} to {c / MIB:.4g} MiB)")
    for name, words in (("hit_rate", "hit rate"), ("dropped_share", "experts dropped")):
        share = _both(baseline, candidate, name)
        if share and abs(share[1] - share[0]) >= LEAST_SHARE_CHANGE:
            said.append(f"{words} {share[0] * 100:.1f} to {share[1] * 100:.1f} %")
    return ", ".join(said) or None


def _both(
    baseline: Sequence[CellParts], candidate: Sequence[CellParts], name: str
) -> tuple[float, float, bool] | None:
    """Means of both arms, and whether the cells of each agree."""
    means, exact = [], True
    for cells in (baseline, candidate):
        values = [v for c in cells if (v := getattr(c, name)) is not None]
        if not values or len(values) < len(cells):
            return None
        exact &= max(values) - min(values) <= EQUAL_WORK_WITHIN * max(values)
        means.append(math.fsum(values) / len(values))
    return means[0], means[1], exact


def carried_by(
    rows: Sequence[AttributionRow], wall: Change, work: str | None, *, told: bool, held: bool
) -> str:
    """`waiting for reads +5.1 of +5.3 ms per token (+4.2 to +6.0); +37 % bytes per token; ...`.

    `told`: there is an effect to be carried. `held`: stalls are held back in these times.
    """
    in_wall = [r for r in rows if r.in_wall]
    carrier = next((r for r in rows if r.carries), None)
    total = f"{wall.change:+.3g} ms per token"
    others = [r for r in in_wall if r is not carrier]
    if carrier is not None:
        said = f"{IN_WORDS[carrier.part]} {_of_total(carrier, wall)}"
        # what faults cost is inside computing
        others = [r for r in others if (carrier.part, r.part) != ("faulting", "computing")]
    elif not in_wall:
        said = f"not split: reads were not recorded apart from computing ({total})"
    elif wall.ci is None:
        largest = max(in_wall, key=lambda r: abs(r.change_ms or 0.0))
        said = f"no interval from these pairs: most is {IN_WORDS[largest.part]} "
        said += _of_total(largest, wall)
        others = [r for r in in_wall if r is not largest]
    elif not told:
        said = f"no part carries it: no effect is told ({total} in all)"
    else:
        said = f"no part carries it: no part of {total} is told by itself"
    stalls = ["stalls held back"] if held else []
    return "; ".join([said, *([work] if work else []), *_rest(others, wall), *stalls])


def _of_total(row: AttributionRow, wall: Change) -> str:
    change = row.change_ms or 0.0
    interval = "" if row.ci_ms is None else f" ({row.ci_ms[0]:+.3g} to {row.ci_ms[1]:+.3g})"
    if abs(change) <= OVERSHOOT * abs(wall.change):
        return f"{change:+.3g} of {wall.change:+.3g} ms per token{interval}"
    return f"{change:+.3g} ms per token{interval}, {wall.change:+.3g} in all"


def _rest(rows: Sequence[AttributionRow], wall: Change) -> list[str]:
    """What the other parts did; those that did not change in one breath."""
    said, unchanged = [], []
    for r in rows:
        change, name = r.change_ms or 0.0, IN_WORDS[r.part]
        small = abs(change) <= NEGLIGIBLE * wall.baseline
        if r.ci_ms is None:
            said += [] if small else [f"{name} {change:+.3g} ms"]
        elif excludes_zero(r.ci_ms) and not small:
            said.append(f"{name} {change:+.3g} ms ({r.ci_ms[0]:+.3g} to {r.ci_ms[1]:+.3g})")
        elif max(map(abs, r.ci_ms)) <= UNCHANGED_WITHIN * wall.baseline:
            unchanged.append(name)
        else:
            said.append(f"{name} unclear ({r.ci_ms[0]:+.3g} to {r.ci_ms[1]:+.3g} ms)")
    if unchanged:
        *first, last = unchanged
        said.append(f"{', '.join(first)}{' and ' if first else ''}{last} unchanged")
    return said


def attribution_table(rows: Sequence[AttributionRow]) -> Data:
    """One row a candidate and part. Milliseconds per token after the warm-up."""
    columns = (
        Column("candidate", "candidate"),
        Column("part", "part"),
        Column("in_wall", "in the wall time"),
        Column("baseline_ms", "baseline ms", ".3f"),
        Column("change_ms", "change ms", "+.3f"),
        Column("low_ms", "from", "+.3f"),
        Column("high_ms", "to", "+.3f"),
        Column("carries", "effect"),
        Column("note", "note"),
    )
    return Data(
        columns,
        tuple(
            (
                r.candidate,
                IN_WORDS[r.part],
                "yes" if r.in_wall else "no",
                r.baseline_ms,
                r.change_ms,
                None if r.ci_ms is None else r.ci_ms[0],
                None if r.ci_ms is None else r.ci_ms[1],
                "carries it" if r.carries else None,
                r.note,
            )
            for r in rows
        ),
    )
