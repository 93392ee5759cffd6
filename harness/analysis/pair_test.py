"""One test of one candidate's pairs: from their cells to an effect with its interval. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from harness.analysis.blocks import Pair
from harness.analysis.cell_times import CellTimes, cell_times, probes_log
from harness.analysis.randomisation import CoinTest, Estimate, interval_of, joint_p_values
from harness.analysis.series import Array, Series
from harness.looks import Look


@dataclass(frozen=True)
class Reading:
    """What the pairs say; effects are ln of time (positive is slower) unless named `_pct`.

    `p_margins`: of the two one-sided tests against the margin of equivalence.
    """

    effect: float | None
    interval: tuple[float | None, float | None]
    p: float
    alpha: float
    coins: int
    se: float | None
    p_margins: tuple[float, float]
    within_margin: bool
    mean_effect: float | None
    typical_effect: float | None
    said: tuple[str, ...]

    @property
    def effect_pct(self) -> float | None:
        return speed_pct(self.effect)

    @property
    def typical_effect_pct(self) -> float | None:
        return speed_pct(self.typical_effect)

    @property
    def ci_pct(self) -> tuple[float, float] | None:
        """None where an end is not bounded."""
        slower, faster = speed_pct(self.interval[1]), speed_pct(self.interval[0])
        return None if slower is None or faster is None else (slower, faster)

    def least_effect_pct(self, look: Look) -> float | None:
        """The effect that such a look would see in half of all cases, at this spread; percent."""
        if self.se is None or self.coins < 2 or look.clean_pairs < 2:
            return None
        spread = self.se * math.sqrt(self.coins / look.clean_pairs)
        return math.expm1(student_bound(look.alpha, 2 * look.clean_pairs - 3) * spread) * 100

    def notes(self, stall_note_pct: float) -> list[str]:
        """What is to be said beside the numbers."""
        notes = list(self.said)
        mean, typical = speed_pct(self.mean_effect), self.typical_effect_pct
        if mean is not None and typical is not None and abs(mean - typical) > stall_note_pct:
            notes.append(
                f"the effect lives in stalls: {mean:+.1f} % on the mean, {typical:+.1f} % on the "
                "typical token"
            )
        return notes


class PairTest:
    """The cells of some pairs of one candidate, ready to be tested."""

    def __init__(
        self,
        pairs: Sequence[Pair],
        series: Mapping[int, Series],
        *,
        warmup_tokens: int,
        margin_log: float,
        equivalence_alpha: float,
    ) -> None:
        self._margin = margin_log
        self._equivalence_alpha = equivalence_alpha
        placed = sorted(
            ((c, p.block, float(c in p.candidate)) for p in pairs for c in p.cells),
            key=lambda item: item[0].index,
        )
        records = [c for c, _, _ in placed]
        self._units = np.array([block for _, block, _ in placed], int)
        self._x = np.array([x for _, _, x in placed], float)
        self._times: CellTimes = cell_times(records, series, warmup_tokens)
        self._probes = probes_log(records)

    def read(self, alpha: float) -> Reading:
        """Effect, interval at 1 - `alpha`, p-value, and whether it is within the margin."""
        mean = self._of(self._times.mean)
        found = mean.estimate(alpha)
        mean_effect, test = found.effect, mean
        typical = None
        if self._times.by_token and found.effect is not None:
            assert self._times.steady is not None and self._times.median is not None
            found, test = self._joint(mean, self._of(self._times.steady), found, alpha)
            fitted = self._of(self._times.median).fit()
            typical = None if fitted is None else fitted[0]
        below = test.p_beyond(self._margin, above=False)
        above = test.p_beyond(-self._margin, above=True)
        said = []
        if not self._times.by_token:
            said.append(
                "not every cell has its tokens' times: speeds of whole cells are compared, the "
                "first tokens included"
            )
        if self._probes is None:
            said.append("not every cell was probed: the device's speed is not adjusted for")
        if found.drawn:
            said.append(f"{found.coins} coins have too many outcomes to list: they were sampled")
        return Reading(
            effect=found.effect,
            interval=found.interval,
            p=found.p,
            alpha=alpha,
            coins=found.coins,
            se=found.se,
            p_margins=(below, above),
            within_margin=max(below, above) <= self._equivalence_alpha,
            mean_effect=mean_effect,
            typical_effect=typical,
            said=tuple(said),
        )

    def gap_log(self) -> float | None:
        """How far (ln of time) all cells of the candidate are beyond all of the baseline.

        Negative: faster. None where they overlap.
        """
        y = self._times.mean
        candidate, baseline = y[self._x > 0.5], y[self._x < 0.5]
        if candidate.min() > baseline.max():
            return float(candidate.min() - baseline.max())
        if candidate.max() < baseline.min():
            return float(candidate.max() - baseline.min())
        return None

    def plain_effect_pct(self) -> float | None:
        """Of these cells alone, without a model."""
        y = self._times.mean
        return speed_pct(float(y[self._x > 0.5].mean() - y[self._x < 0.5].mean()))

    def _joint(
        self, mean: CoinTest, steady: CoinTest, found: Estimate, alpha: float
    ) -> tuple[Estimate, CoinTest]:
        """The effect by the steady time where the mean does not contradict it, else by the mean.

        p is that of no effect on either.
        """
        tests = (mean, steady)
        p = float(joint_p_values(tests, np.zeros(1))[0])
        fitted = steady.fit()
        if fitted is None or mean.p(fitted[0]) <= alpha:
            return dataclasses.replace(found, p=p), mean
        effect, se, q, b = fitted
        ends = interval_of(lambda e: joint_p_values(tests, e), effect, se, alpha, found.p_least)
        return Estimate(effect, ends, p, alpha, se, q, b, found.coins, found.drawn), steady

    def _of(self, y: Array) -> CoinTest:
        return CoinTest(y, self._x, self._units, self._probes)


def speed_pct(effect_log: float | None) -> float | None:
    """Change of tok/s (percent) that goes with a change of ln(time)."""
    return None if effect_log is None else math.expm1(-effect_log) * 100


def student_bound(alpha: float, freedom: int) -> float:
    """About the two-sided bound of Student's t: the normal's, widened for few degrees of freedom.

    Good to 2 % from 8 degrees on; used for projections, never for a test.
    """
    z = NormalDist().inv_cdf(1 - alpha / 2)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
