"""One rule for every metric: an interval and a margin to pass, regression or neither. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from harness.gate.metrics import Metric

GateOutcome = Literal["pass", "regression", "none"]


@dataclass(frozen=True)
class Case:
    """One arm and one metric, a case of its own in whatever shows them.

    `metric`: also `output`, whether the generated text is the baseline's, and `verdict`, a
    campaign's own about its candidate. `change_pct`: of the metric as it is written, so that +5 %
    is worse where less is better. `failed`: there is no answer because cells ended badly.
    `interval_pct`: an end is None where it is not bounded. `cells`: how many of the baseline's and
    the candidate's were read.
    """

    arm: str
    metric: str
    outcome: GateOutcome
    baseline: float | None = None
    candidate: float | None = None
    change_pct: float | None = None
    interval_pct: tuple[float, float] | None = None
    cells: tuple[int, int] = (0, 0)
    reasons: tuple[str, ...] = ()
    failed: bool = False


def read(
    change: float, low: float | None, high: float | None, worst: float
) -> tuple[GateOutcome, str]:
    """All ln, more is better; `worst`, below 0, is the margin.

    Whether there is a change at all is asked of the interval; of one that there surely is, the best
    estimate says on which side of the margin it is.
    """
    if low is None or high is None:
        return "none", "the change cannot be bounded"
    if high < 0:
        if change < worst:
            return "regression", "surely worse, and by more than the margin as far as can be told"
        return "pass", "worse, but within the margin"
    if low >= worst:
        return "pass", "surely not worse by more than the margin"
    return "none", "the interval holds no change as well as one beyond the margin"


def worst_log(metric: Metric, margin_pct: float) -> float:
    """The margin as `read` wants it."""
    return (
        math.log1p(-margin_pct / 100) if metric.higher_is_better else -math.log1p(margin_pct / 100)
    )


def good_log(metric: Metric, value: float) -> float:
    """ln of a positive value, turned so that more is better."""
    return math.log(value) if metric.higher_is_better else -math.log(value)


def change_pct(metric: Metric, log: float) -> float:
    """Back to a change of the metric in percent."""
    return math.expm1(log if metric.higher_is_better else -log) * 100


def interval_pct(
    metric: Metric, low: float | None, high: float | None
) -> tuple[float, float] | None:
    """The same for an interval, its lower end first."""
    if low is None or high is None:
        return None
    ends = change_pct(metric, low), change_pct(metric, high)
    return min(ends), max(ends)
