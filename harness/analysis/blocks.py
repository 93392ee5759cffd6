"""The pairs of a campaign, and which of them can be used. Pure.

Nothing here looks at how fast one arm is against another: a pair is kept or left out by rules that
would decide alike with the arms exchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.counters import compare_work, unasked_differences
from harness.analysis.usable import no_speed, too_long_a_break
from harness.planned import Plan
from harness.records import CellRecord
from harness.verdicts import CellVerdict, PairRow, PairState
from harness.words import counted


@dataclass(frozen=True)
class Pair:
    """The cells of one block that belong to the baseline and to one candidate, in run order.

    `whole`: all of them have run.
    """

    block: int
    baseline: tuple[CellRecord, ...]
    candidate: tuple[CellRecord, ...]
    whole: bool

    @property
    def cells(self) -> tuple[CellRecord, ...]:
        """In the order in which they ran."""
        return tuple(sorted(self.baseline + self.candidate, key=lambda r: r.index))

    @property
    def candidate_first(self) -> bool:
        return self.cells[0] in self.candidate

    @property
    def has_speeds(self) -> bool:
        return self.whole and not any(no_speed(c) for c in self.cells)


@dataclass(frozen=True)
class JudgedPair:
    """A pair with what is held against it; `clean`: nothing.

    `same_task`: all of its cells have a speed, and of the same work. Only then does anything follow
    from a pair whose timing is doubtful.
    """

    pair: Pair
    status: PairState
    reasons: tuple[str, ...] = ()
    same_task: bool = True

    @property
    def clean(self) -> bool:
        return self.status == "clean"


def blocks_of(plan: Plan) -> tuple[int, ...]:
    """The numbers of all planned blocks, ascending."""
    return tuple(sorted({c.block for c in plan.cells if c.block is not None}))


def pairs_of(plan: Plan, candidate: str, records: Mapping[int, CellRecord]) -> tuple[Pair, ...]:
    """One pair for each planned block of the candidate; `records` by the cell's index."""
    pairs = []
    planned: dict[int, list[tuple[int, str]]] = {}
    for cell in plan.cells:
        if cell.block is not None and cell.arm in (plan.baseline, candidate):
            planned.setdefault(cell.block, []).append((cell.index, cell.arm))
    for block, cells in sorted(planned.items()):
        if {arm for _, arm in cells} != {plan.baseline, candidate}:
            continue
        found = [(records[i], arm) for i, arm in sorted(cells) if i in records]
        pairs.append(
            Pair(
                block,
                baseline=tuple(r for r, arm in found if arm == plan.baseline),
                candidate=tuple(r for r, arm in found if arm == candidate),
                whole=len(found) == len(cells),
            )
        )
    return tuple(pairs)


def judge_pair(
    pair: Pair, cells: Mapping[int, CellVerdict], work: Mapping[int, str], max_gap_s: float
) -> JudgedPair:
    """Whether the pair can be used. `cells`: by index; `work`: problems of counters, by index."""
    if not pair.whole:
        return JudgedPair(pair, "incomplete", same_task=False)
    reasons: list[str] = []
    unlike: list[str] = []
    for cell in pair.cells:
        verdict = cells.get(cell.index)
        found = no_speed(cell)
        unlike += found
        if verdict is not None and verdict.status in ("contaminated", "unusable"):
            found = found or [f"{cell.cell}: {r}" for r in verdict.reasons]
            found = found or [f"{cell.cell} is {verdict.status}"]
            unlike += found if verdict.status == "unusable" else []
        reasons += found
        if cell.index in work:
            unlike.append(work[cell.index])
    unlike += _unlike_tasks(pair)
    for first, second in zip(pair.cells, pair.cells[1:], strict=False):
        if second.index == first.index + 1:
            reasons += too_long_a_break(first, second, max_gap_s)
    differing: list[str] = []
    for c in pair.candidate:
        for b in pair.baseline:
            unasked = unasked_differences(c, b)
            differing += unasked.differing
            unlike += unasked.one_sided
    reasons += unlike
    if differing:
        words = [f"{d}, which nobody asked for" for d in differing]
        return JudgedPair(pair, "confounded", tuple(dict.fromkeys(words + reasons)), False)
    status: PairState = "replaced" if reasons else "clean"
    return JudgedPair(pair, status, tuple(dict.fromkeys(reasons)), not unlike)


def _unlike_tasks(pair: Pair) -> list[str]:
    counts = {c.cell: c.counters.tokens for c in pair.cells}
    known = {name: n for name, n in counts.items() if n is not None}
    if len(set(known.values())) < 2:
        return []
    words = ", ".join(f"{name} made {counted(n, 'token')}" for name, n in known.items())
    return [f"{words}: not the same task"]


def unequal_work(
    cells: Sequence[CellRecord], tolerance_pct: float
) -> tuple[dict[int, str], str | None]:
    """Cells of one arm whose counters are not those of the others, by index, in words.

    The second: why not even half of them agree, so that the arm has no work of its own to speak
    of. Cells without a speed are not compared. An arm that drops cold experts, or reads ahead, need
    only make as many tokens.
    """
    usable = [c for c in cells if not no_speed(c)]
    best: dict[int, str] = {}
    for i, reference in enumerate(usable):
        unlike = {
            c.index: f"counters differ: {problems[0]}"
            for c in usable
            if c is not reference and (problems := _work_problems(reference, c, tolerance_pct))
        }
        if i == 0 or len(unlike) < len(best):
            best = unlike
        if len(best) * 2 < len(usable):
            return best, None
    if not best:
        return {}, None
    first = next(iter(best.values()))
    return best, f"fewer than half of the {len(usable)} cells of {usable[0].arm} agree: {first}"


def _work_problems(a: CellRecord, b: CellRecord, tolerance_pct: float) -> tuple[str, ...]:
    if a.counters.dropped or b.counters.dropped:
        x, y = a.counters.tokens, b.counters.tokens
        return () if x == y else (f"tokens {x} in {a.cell}, {y} in {b.cell}",)
    return compare_work(a, b, tolerance_pct).problems


def broken_order(pairs: Sequence[Pair]) -> str | None:
    """Why an order of pairs of which no coins are known was not drawn; None where it may have been.

    One and the same order throughout, or turned about each time: then a drift of the device, or
    its answer to every second cell, cannot be told from the candidate.
    """
    firsts = [p.candidate_first for p in pairs if p.whole]
    if len(firsts) < _PAIRS_THAT_SHOW_AN_ORDER:
        return None
    turned = [f != (i % 2 == 1) for i, f in enumerate(firsts)]
    if len(set(firsts)) == 1:
        return f"all {len(firsts)} pairs ran in the same order"
    if len(set(turned)) == 1:
        return f"the order of the {len(firsts)} pairs strictly alternates"
    return None


# of fewer pairs drawn by coins, one in four or more would look ordered
_PAIRS_THAT_SHOW_AN_ORDER = 4


def order_not_as_drawn(plan: Plan, pairs: Sequence[Pair]) -> str | None:
    """Whether a pair ran in another order than its coin said; None without coins."""
    if plan.coins is None:
        return None
    for pair in pairs:
        if not pair.whole or pair.block >= len(plan.coins.orders):
            continue
        order = plan.coins.orders[pair.block]
        candidate = pair.candidate[0].arm
        if plan.baseline not in order or candidate not in order:
            return f"the coin of block {pair.block} does not name {candidate} and {plan.baseline}"
        if pair.candidate_first != (order.index(candidate) < order.index(plan.baseline)):
            return f"block {pair.block} did not run in the order that was drawn"
    return None


def pair_row(judged: JudgedPair, candidate: str, effect_pct: float | None) -> PairRow:
    return PairRow(
        candidate=candidate,
        block=judged.pair.block,
        baseline_cells=tuple(c.index for c in judged.pair.baseline),
        candidate_cells=tuple(c.index for c in judged.pair.candidate),
        status=judged.status,
        effect_pct=effect_pct,
        reasons=judged.reasons,
    )
