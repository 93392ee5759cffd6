"""One test of one candidate's pairs: from their cells to an effect with its interval. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from harness.analysis.blocks import Pair
from harness.analysis.cell_times import CellTimes, cell_times
from harness.analysis.probe_levels import noise_of, probe_levels
from harness.analysis.randomisation import CoinTest, PValues, joint_p_values, steady_stands
from harness.analysis.series import Array, Series
from harness.analysis.verdict_words import stalls_in_words
from harness.looks import Look

# a difference of the two effects that is said
_STALLS_SHOWN_PCT = 1.0


# of fewer the spread is as good as unknown
_PAIRS_FOR_A_SPREAD = 4


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
    def told_from_none(self) -> bool:
        """p is within alpha, and 0 lies outside of the interval.

        p need not fall steadily: 0 may be rejected while effects on both sides of it are not.
        """
        low, high = self.interval
        outside = (low is not None and low > 0) or (high is not None and high < 0)
        return self.effect is not None and self.p <= self.alpha and outside

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
        if self.se is None or self.coins < _PAIRS_FOR_A_SPREAD or look.clean_pairs < 2:
            return None
        spread = self.se * math.sqrt(self.coins / look.clean_pairs)
        return math.expm1(student_bound(look.alpha, 2 * look.clean_pairs - 3) * spread) * 100

    def notes(self, stall_note_pct: float) -> list[str]:
        """What is to be said beside the numbers."""
        notes = list(self.said)
        mean, typical = speed_pct(self.mean_effect), self.typical_effect_pct
        if mean is not None and typical is not None and abs(mean - typical) > stall_note_pct:
            notes.append(stalls_in_words(mean, typical))
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
        self._probes = probe_levels(records)
        self._noise: Array | None = None
        if self._probes is not None and self._probes.move is not None and self._times.tokens:
            self._noise = noise_of(self._times.tokens.move, self._probes.move)

    def read(self, alpha: float) -> Reading:
        """Effect, interval at 1 - `alpha`, p-value, and whether it is within the margin."""
        mean = self._of(self._times.mean)
        test = mean
        tests: tuple[CoinTest, ...] = (mean,)
        p_values: PValues = mean.p_values
        typical, plain = None, mean.fit()
        if self._times.tokens is not None:
            # the probe that is read is that of the cell's end
            own = self._times.tokens
            steady = self._of(own.steady if self._probes is None else own.at_end)
            tests = (mean, steady)
            test, p_values = self._chosen(mean, steady, alpha)
            fitted = self._of(self._times.tokens.median).fit()
            typical = None if fitted is None else fitted[0]
        found = test.estimate(alpha, p_values, tests)
        below = test.p_beyond(self._margin, above=False)
        above = test.p_beyond(-self._margin, above=True)
        said = []
        if self._times.tokens is None:
            said.append(
                "not every cell has its tokens' times: speeds of whole cells are compared, the "
                "first tokens included"
            )
        elif test is not mean and plain is not None and found.effect is not None:
            shown = [speed_pct(e) or 0.0 for e in (found.effect, plain[0])]
            if abs(shown[0] - shown[1]) > _STALLS_SHOWN_PCT:
                said.append(
                    f"stalls held back: {shown[0]:+.1f} %; on the plain mean {shown[1]:+.1f} %, "
                    "which the same test does not tell from it"
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
            mean_effect=None if plain is None else plain[0],
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
        y = self._times.mean if self._times.tokens is None else self._times.tokens.steady
        return speed_pct(float(y[self._x > 0.5].mean() - y[self._x < 0.5].mean()))

    def _chosen(self, mean: CoinTest, steady: CoinTest, alpha: float) -> tuple[CoinTest, PValues]:
        """Which time the effect is read from, and what its p-values are.

        From the steady one, unless the mean contradicts what that says. An effect is rejected where
        the larger of both statistics rejects it, so that one which lives in stalls is not missed;
        against a mean that contradicts, only where the mean does too.
        """
        tests = (mean, steady)
        if steady_stands(mean, steady, alpha):
            return steady, lambda effects: joint_p_values(tests, effects)
        return mean, lambda effects: np.maximum(
            joint_p_values(tests, effects), mean.p_values(effects)
        )

    def _of(self, y: Array) -> CoinTest:
        probe_log = None if self._probes is None else self._probes.log
        return CoinTest(y, self._x, self._units, probe_log, noise=self._noise)


def speed_pct(effect_log: float | None) -> float | None:
    """Change of tok/s (percent) that goes with a change of ln(time)."""
    return None if effect_log is None else math.expm1(-effect_log) * 100


def student_bound(alpha: float, freedom: int) -> float:
    """About the two-sided bound of Student's t: the normal's, widened for few degrees of freedom.

    Good to 2 % from 8 degrees on; used for projections, never for a test.
    """
    z = NormalDist().inv_cdf(1 - alpha / 2)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
