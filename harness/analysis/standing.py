"""Where each candidate of a running campaign of pairs stands, and what it still needs. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from harness.analysis.blocks import blocks_of
from harness.analysis.pair_test import student_bound
from harness.looks import look_schedule
from harness.planned import Plan
from harness.verdicts import CampaignVerdict, CandidateVerdict, LookRow, Outcome, PairRow
from harness.words import counted

# of these nothing is left to run; the others end with the budget
_FINAL: tuple[Outcome, ...] = (
    "win",
    "loss",
    "equivalent",
    "contaminated",
    "confounded",
    "unreadable",
)
_PAIRS_FOR_A_SPREAD = 3


@dataclass(frozen=True)
class Standing:
    """One candidate after the pairs that have run.

    `decided`: it needs no more cells. `effect_pct`, `ci_pct`: as of now; `tested`: at a look, else
    they are an estimate at which nothing was decided; `ci_level_pct`: the interval's level while
    undecided, which is not that of the looks' own intervals. `next_look`: clean pairs at which p is
    compared next, None when no look is left; `pairs_left`: of the budget. `least_effect_pct`: what
    the last look would show in half of all cases, were the spread of the pairs to stay.
    `last_left_out`: why the pair that ran last does not count, None where it does.
    """

    candidate: str
    outcome: Outcome
    decided: bool
    pairs: int
    clean_pairs: int
    effect_pct: float | None
    ci_pct: tuple[float, float] | None
    ci_level_pct: float | None
    tested: bool
    next_look: int | None
    pairs_left: int
    least_effect_pct: float | None
    last_left_out: str | None = None

    @property
    def missing_clean_pairs(self) -> int | None:
        """To the next look; None when no look is left."""
        return None if self.next_look is None else max(self.next_look - self.clean_pairs, 0)


def standings(plan: Plan, verdict: CampaignVerdict) -> tuple[Standing, ...]:
    """Of every candidate, in the order of the verdict's."""
    return tuple(_standing(plan, verdict, v) for v in verdict.verdicts)


def decided_candidates(standings: Iterable[Standing]) -> frozenset[str]:
    """Those whose remaining cells need not run."""
    return frozenset(s.candidate for s in standings if s.decided)


def _standing(plan: Plan, verdict: CampaignVerdict, own: CandidateVerdict) -> Standing:
    schedule = look_schedule(len(plan.candidates))
    budget = min(schedule.blocks, len(blocks_of(plan)))
    rows = [p for p in verdict.pairs if p.candidate == own.candidate]
    ran = [p for p in rows if p.status != "incomplete"]
    looks = [look for look in verdict.looks if look.candidate == own.candidate]
    tests = [look for look in looks if look.alpha is not None]
    # after the last look nothing that is run can change the verdict
    spent = len(tests) >= len(schedule.looks)
    decided = own.outcome in _FINAL or spent or len(ran) >= budget
    coming = [look.clean_pairs for look in schedule.looks[len(tests) :]]
    effects = [p.effect_pct for p in ran if p.status == "clean" and p.effect_pct is not None]
    return Standing(
        candidate=own.candidate,
        outcome=own.outcome,
        decided=decided,
        pairs=len(ran),
        clean_pairs=own.clean_pairs or 0,
        effect_pct=own.effect_pct,
        ci_pct=own.ci_pct,
        ci_level_pct=None if decided else (1 - schedule.alpha) * 100,
        tested=_at_a_test(looks),
        next_look=coming[0] if coming and not decided else None,
        pairs_left=0 if decided else budget - len(ran),
        least_effect_pct=_least(effects, schedule.looks[-1].clean_pairs, schedule.looks[-1].alpha),
        last_left_out=_left_out(ran),
    )


def _left_out(ran: list[PairRow]) -> str | None:
    if not ran or ran[-1].status == "clean":
        return None
    return ran[-1].reasons[0] if ran[-1].reasons else ran[-1].status


def _at_a_test(looks: list[LookRow]) -> bool:
    return bool(looks) and looks[-1].alpha is not None


def _least(effects_pct: list[float], pairs: int, alpha: float) -> float | None:
    """From the spread of single pairs: the model of the test sees a little more than that."""
    if len(effects_pct) < _PAIRS_FOR_A_SPREAD:
        return None
    spread = statistics.stdev(math.log1p(e / 100) for e in effects_pct)
    return math.expm1(student_bound(alpha, pairs - 1) * spread / math.sqrt(pairs)) * 100


def standing_in_words(standing: Standing) -> str:
    """One line for whoever waits."""
    s = standing
    estimate = "nothing to estimate yet"
    if s.effect_pct is not None:
        estimate = f"{s.effect_pct:+.1f} %"
        if s.ci_pct is not None:
            level = "" if s.ci_level_pct is None else f" at {s.ci_level_pct:.3g} %"
            estimate += f" ({s.ci_pct[0]:+.1f} to {s.ci_pct[1]:+.1f}{level})"
        if not s.tested and not s.decided:
            estimate += ", not a test yet"
    pairs = f"{s.clean_pairs} clean of {counted(s.pairs, 'pair')}"
    if s.decided:
        # its looks or its pairs are used up: nothing that could be run would decide it
        why = "it ends undecided" if s.outcome == "inconclusive" else "no more cells needed"
        return f"{s.candidate}: {s.outcome}, {estimate}, {pairs}; {why}"
    parts = [pairs, estimate]
    if s.next_look is not None and s.missing_clean_pairs is not None:
        look = f"next look at {s.next_look} clean pairs"
        if s.missing_clean_pairs > s.pairs_left:
            parts.append(f"{look}, which the budget does not reach any more")
        else:
            parts.append(f"{look}, {s.missing_clean_pairs} to go")
    parts.append(f"{counted(s.pairs_left, 'pair')} left of the budget")
    if s.least_effect_pct is not None:
        parts.append(
            f"at this spread the last look would show an effect beyond {s.least_effect_pct:.1f} %"
        )
    so_far = f"{s.outcome.replace('_', ' ')}, " if s.outcome.startswith("provisional") else ""
    if s.last_left_out is not None:
        parts.append(f"the last pair is left out: {s.last_left_out}")
    return f"{s.candidate}: {so_far}{'; '.join(parts)}"
