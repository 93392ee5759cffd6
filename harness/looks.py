"""When a campaign of randomised pairs is looked at, and how much error each look may spend. Pure.

Published for one candidate: looks at 7, 9 and 12 clean pairs with 0.0157, 0.0118 and 0.0225, which
are 0.05 in all, and a budget of 18 pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

ALPHA = 0.05
_LOOKS = ((7, 0.0157), (9, 0.0118), (12, 0.0225))
# 18 pairs for 12 clean ones
_BLOCKS_PER_CLEAN_PAIR = 1.5


@dataclass(frozen=True)
class Look:
    """At so many clean pairs p is compared with `alpha`."""

    clean_pairs: int
    alpha: float


@dataclass(frozen=True)
class Schedule:
    """The looks at one candidate; `blocks`: the budget, all pairs that may be run.

    `fallback_pairs`: of a budget that did not yield enough clean pairs for one look, so many are
    tested as they are. `alpha`: what all looks may spend together.
    """

    looks: tuple[Look, ...]
    blocks: int
    fallback_pairs: int
    alpha: float

    def alpha_at_end(self, spent: float) -> float:
        """What a last test may spend once the budget is: all that no look has."""
        return max(round(self.alpha - spent, 9), 0.0)


def look_schedule(candidates: int) -> Schedule:
    """The looks at each of so many candidates against one baseline.

    The false verdicts of all candidates together stay within ALPHA: each gets an equal share of it
    (Bonferroni). As n pairs cannot give p below 2 / 2^n, a share can be reached only with
    ceil(log2 candidates) more pairs, so that all looks are as much later, and the budget with them.
    """
    if candidates < 1:
        raise ValueError("a schedule is for at least one candidate")
    later = (candidates - 1).bit_length()
    last = _LOOKS[-1][0] + later
    return Schedule(
        looks=tuple(Look(pairs + later, alpha / candidates) for pairs, alpha in _LOOKS),
        blocks=math.ceil(last * _BLOCKS_PER_CLEAN_PAIR),
        fallback_pairs=last,
        alpha=ALPHA / candidates,
    )
