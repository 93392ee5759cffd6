"""What a metric changed by between two campaigns, and what of that their days may explain. Pure.

Everything here is ln of a metric turned so that more is better: -0.05 is 5 % worse.

Cells of one campaign say nothing of the next day, so that an interval from them alone is too
narrow. It is never narrower than what the days are known to differ by: the differences between
earlier campaigns of the same configuration, where there are enough. Where there are not, the drift
that both campaigns saw inside themselves is a floor, and before an engine is accused its change
must be beyond what two days of a quiet device differ by (docs/gate.md: what comes of it).
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# so many differences between successive campaigns are needed to call their spread known
MIN_DIFFERENCES = 3
# VERDICTS.md: means of the same configuration, repeated on a quiet device, differ by this (rms)
DAYS_LOG = 0.023
_MANY = 10_000  # freedom of a t-distribution that is normal
# A real change of the engine is among the differences between days, too: a quarter of them, the
# largest, is left out. By how many there are, what the rms of the rest is then to be multiplied by
# where all are of one spread (400,000 simulated series; tests/bench/gate.py makes them again).
OF_ALL_LOG_SD = {
    **{3: 1.0, 4: 1.33, 5: 1.29, 6: 1.26, 7: 1.23},
    **{8: 1.45, 9: 1.41, 10: 1.38, 11: 1.35},
}
# a change that a probe saw counts once it is beyond so many of its own standard errors
_PROBE_SES = 2.0
# the least that a pooled spread can be; records are rounded
_LEAST_SD = 1e-6


@dataclass(frozen=True)
class Cell:
    """One cell that counts: its arm, its value, and ln of its speed by each probe that ran."""

    arm: str
    value: float
    probes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Side:
    """The cells of one campaign, of all arms; `drift`: ln of its own change of speed, or None."""

    cells: tuple[Cell, ...]
    drift: float | None = None


@dataclass(frozen=True)
class Between:
    """The change of one arm and the interval in which it surely is, one-sided at both ends.

    `low`: it is worse than this with probability `alpha_low` at most; `high` likewise. None: not
    known. `basis`: what the width rests on, in words. `probes`: what each probe changed by, beyond
    its own error; the interval holds the change with and without that.
    """

    change: float
    low: float | None
    high: float | None
    basis: str
    probes: Mapping[str, float] = field(default_factory=dict)


def between(
    arm: str,
    baseline: Side,
    candidate: Side,
    differences: Sequence[float],
    *,
    timed: bool,
    alpha_low: float,
    alpha_high: float,
) -> Between:
    """`differences`: of the arm, between successive campaigns before. `timed`: the day is in it."""
    b = [c.value for c in baseline.cells if c.arm == arm]
    c = [c.value for c in candidate.cells if c.arm == arm]
    change = statistics.fmean(c) - statistics.fmean(b)
    probes = _moved(arm, baseline, candidate)
    width = _width(len(b), len(c), baseline, candidate, differences if timed else ())
    if width is None:
        return Between(change, None, None, "no arm was run twice, so that nothing shows the spread")
    days = 0.0
    if timed and len(differences) < MIN_DIFFERENCES:
        days = DAYS_LOG * student_t(alpha_high, _MANY)
    explained = [0.0, *probes.values()]
    return Between(
        change,
        low=change - max(explained) - width.half(alpha_low),
        high=change - min(explained) + max(width.half(alpha_high), days),
        basis=width.basis,
        probes=probes,
    )


@dataclass(frozen=True)
class _Width:
    """Half of an interval is the larger of `floor` and sd x Student's t."""

    sd: float
    freedom: int
    floor: float
    basis: str

    def half(self, alpha: float) -> float:
        return max(self.floor, self.sd * student_t(alpha, self.freedom))


def _width(
    n_b: int, n_c: int, baseline: Side, candidate: Side, differences: Sequence[float]
) -> _Width | None:
    spread, freedom = _spread_of_cells([baseline, candidate])
    within = None if spread is None else spread * math.sqrt(1 / n_b + 1 / n_c)
    if len(differences) >= MIN_DIFFERENCES:
        days, days_freedom = spread_of_days(differences)
        words = f"{len(differences) + 1} earlier campaigns, which differ by {days:.1%} (rms)"
        if within is not None and within > days:
            return _Width(within, freedom, 0.0, f"the spread of the cells, more than {words}")
        return _Width(max(days, _LEAST_SD), days_freedom, 0.0, words)
    if within is None:
        return None
    if baseline.drift is None and candidate.drift is None:
        return _Width(within, freedom, 0.0, f"a spread of {spread:.2%} between cells")
    drifts = [abs(s.drift) for s in (baseline, candidate) if s.drift is not None]
    drift = max(drifts, default=0.0)
    words = (
        f"a spread of {spread:.1%} between cells and a drift of {drift:.1%} inside the campaigns; "
        f"how much two days differ here is not known yet ({len(differences)} of {MIN_DIFFERENCES} "
        "differences between earlier campaigns)"
    )
    return _Width(within, freedom, drift, words)


def spread_of_days(differences: Sequence[float]) -> tuple[float, int]:
    """What two campaigns of one engine differ by (rms), and its freedom; of the newest ones."""
    newest = differences[-max(OF_ALL_LOG_SD) :]
    kept = sorted(map(abs, newest))[: math.ceil(0.75 * len(newest))]
    rms = math.sqrt(statistics.fmean(d**2 for d in kept))
    return rms * OF_ALL_LOG_SD[len(newest)], len(kept) - (len(kept) < len(newest))


def _spread_of_cells(sides: Sequence[Side]) -> tuple[float | None, int]:
    """Standard deviation of cells about the mean of their arm and campaign, and its freedom."""
    squares, freedom = 0.0, 0
    for side in sides:
        for arm in {c.arm for c in side.cells}:
            own = [c.value for c in side.cells if c.arm == arm]
            mean = statistics.fmean(own)
            squares += sum((v - mean) ** 2 for v in own)
            freedom += len(own) - 1
    if freedom == 0:
        return None, 0
    return max(math.sqrt(squares / freedom), _LEAST_SD), freedom


def _moved(arm: str, baseline: Side, candidate: Side) -> dict[str, float]:
    """ln of the device's speed by each probe, against the baseline's day, where surely another."""
    found = {}
    for name in sorted({n for s in (baseline, candidate) for c in s.cells for n in c.probes}):
        b, c = (
            [cell.probes[name] for cell in s.cells if cell.arm == arm and name in cell.probes]
            for s in (baseline, candidate)
        )
        if not b or not c:
            continue
        everyone = [
            Side(tuple(Cell(x.arm, x.probes[name]) for x in s.cells if name in x.probes))
            for s in (baseline, candidate)
        ]
        spread, _ = _spread_of_cells(everyone)
        error = 0.0 if spread is None else spread * math.sqrt(1 / len(b) + 1 / len(c))
        moved = statistics.fmean(c) - statistics.fmean(b)
        if abs(moved) > _PROBE_SES * error:
            found[name] = moved
    return found


@functools.cache
def student_t(alpha: float, freedom: int) -> float:
    """What a t-distributed number exceeds with probability `alpha`; by bisection."""
    low, high = 0.0, 1.0
    while _t_tail(high, freedom) > alpha:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_tail(middle, freedom) > alpha else (low, middle)
    return (low + high) / 2


def _t_tail(t: float, freedom: int) -> float:
    """P(T > t) for t >= 0: with t = sqrt(freedom) tan(a) the density is a power of cos(a)."""
    steps = 400
    a0, a1 = math.atan(t / math.sqrt(freedom)), math.pi / 2
    log_c = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi) / 2
    h = (a1 - a0) / steps
    total = 0.0
    for i in range(steps + 1):  # Simpson
        weight = 1 if i in (0, steps) else 4 if i % 2 else 2
        total += weight * math.cos(a0 + i * h) ** (freedom - 1)
    return math.exp(log_c) * total * h / 3
