"""The re-randomisation test of one effect over cells whose order was drawn by coins. Pure.

A cell's logarithm of time is taken for a level, a linear trend, white noise, and a random walk of
the device from cell to cell, of which the test needs to know nothing: its p-value is the share of
all outcomes of the coins under which the statistic is at least as large as it was. The model only
decides how much the statistic sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
PValues = Callable[[Array], Array]  # of each of these effects

# variance of a step of the random walk over that of the white noise, from which REML chooses
Q_GRID = (0.0, 0.02, 0.1, 0.4, 1.5, 6.0, 30.0)
# the probe's own error (log), and the most that speed can follow it
PROBE_SD_LOG = 0.015
PROBE_SLOPE_MAX = 1.2
# more coins than this are not enumerated but drawn
ENUMERATED_COINS = 14
_DRAWS = 4095
_DRAW_SEED = 20260727
# outcomes whose statistics differ by less than rounding are one and the same
_TIE = 1e-9
# ends of intervals are found to this (log): 0.002 % of the effect
_PRECISION_LOG = 2e-5
_FARTHEST_LOG = 12.0


@dataclass(frozen=True)
class Estimate:
    """What the test says of an effect on ln(time): positive is slower.

    `interval`: where the two-sided test does not reject at `alpha`, the hull of it; None for an
    end that the outcomes of the coins cannot bound. `effect`: None where the cells cannot show one
    (fewer than two coins, say); then p is 1. `p`: of no effect. `se`: by the model, not by the
    coins. `q`, `b`: the random walk and the slope on the probe as they were fitted at `effect`.
    `coins`: how many decided the order. `drawn`: outcomes were drawn at random (with a fixed seed)
    because there are too many to list.
    """

    effect: float | None
    interval: tuple[float | None, float | None]
    p: float
    alpha: float
    se: float | None = None
    q: float = 0.0
    b: float = 0.0
    coins: int = 0
    drawn: bool = False


def least_p(coins: int) -> float:
    """The smallest two-sided p-value that so many fair coins can give."""
    return 1.0 if coins < 1 else max(2.0 ** (1 - coins), 1 / (_DRAWS + 1))


def estimate(
    y: Array,
    x: Array,
    units: Sequence[int] | NDArray[np.int_],
    probe_log: Array | None,
    *,
    alpha: float,
    noise: Array | None = None,
    q: float | None = None,
) -> Estimate:
    """Estimate the effect of x on y, with the interval at 1 - `alpha` (see `CoinTest`)."""
    test = CoinTest(y, x, units, probe_log, noise=noise, q=q)
    return test.estimate(alpha)


class CoinTest:
    """Effects on y tested against the coins that decided x.

    All of shape (n,), in the order in which the cells ran. `y`: ln of a time, or any other
    quantity. `x`: 1 for the candidate's cells, else 0. `units`: which coin decided the cell; the
    other side of that coin exchanges the arms of all its cells. `probe_log`: ln of the cell's
    probe, None where not all were probed. `noise`: white variance of each cell in units of an
    ordinary one's; computed without regard to x. `q`: one of Q_GRID instead of what fits, and a
    slope on the probe without bounds, so that several quantities of the same cells, in whatever
    unit, are estimated alike and sums of them stay sums. Raises ValueError where shapes differ or
    a value is not finite.
    """

    def __init__(
        self,
        y: Array,
        x: Array,
        units: Sequence[int] | NDArray[np.int_],
        probe_log: Array | None,
        *,
        noise: Array | None = None,
        q: float | None = None,
    ) -> None:
        self._given = None if q is None else Q_GRID.index(q)
        y = np.asarray(y, float)
        # the level says nothing, and without it less is lost to rounding
        self._y = y - y.mean() if len(y) else y
        self._x = np.asarray(x, float)
        n = len(self._y)
        own = np.ones(n) if noise is None else np.asarray(noise, float)
        probe = None if probe_log is None else np.asarray(probe_log, float)
        _, coin_of = np.unique(np.asarray(units), return_inverse=True)
        for values in (self._y, self._x, own, coin_of, *(() if probe is None else (probe,))):
            if values.shape != (n,) or not np.all(np.isfinite(values)):
                raise ValueError("every cell needs one finite value of each quantity")
        self.coins = int(coin_of.max()) + 1 if n else 0
        self.drawn = self.coins > ENUMERATED_COINS
        self._trust = 2 / (own[1:] + own[:-1])
        self._probe = None if probe is None or not n else probe - probe.mean()
        self._able = self.coins >= 2 and n >= 4 and 0 < self._x.sum() < n
        if self._able:
            self._models = _models(tuple(own))
            signs = _outcomes(self.coins)[:, coin_of] * (self._x - 0.5)
            self._signs: Array = signs
            self._whitened: dict[int, Array] = {}

    # --- what is asked of it ---------------------------------------------------------------------

    def p(self, effect: float = 0.0) -> float:
        """The two-sided p-value of `effect`."""
        return float(self.p_values(np.array([effect]))[0])

    def p_values(self, effects: Array) -> Array:
        """Two-sided p-values; the smallest possible is `least_p(coins)`."""
        if not self._able:
            return np.ones(len(effects))
        statistics = np.abs(self.statistics(effects))
        return np.asarray((statistics >= statistics[0] * (1 - _TIE)).mean(axis=0))

    def p_beyond(self, effect: float, *, above: bool) -> float:
        """The one-sided p-value of an effect of at least (`above`: at most) `effect`.

        Small when the data speak for less than it (`above`: for more).
        """
        if not self._able:
            return 1.0
        t = self.statistics(np.array([effect]))[:, 0] * (1 if above else -1)
        # every outcome stands for its mirror image too, whose statistic is the negative
        bar = t[0] - _TIE * abs(t[0])
        return float(((t >= bar).mean() + (-t >= bar).mean()) / 2)

    def estimate(
        self, alpha: float, p_values: PValues | None = None, tests: Sequence[CoinTest] = ()
    ) -> Estimate:
        """The effect, with the interval at 1 - `alpha` and the p-value of no effect.

        The last two by `p_values` of several `tests`, where those are given.
        """
        p_values, tests = p_values or self.p_values, tests or (self,)
        fitted = self.fit()
        if fitted is None:
            return Estimate(None, (None, None), 1.0, alpha, coins=self.coins, drawn=self.drawn)
        effect, se, q, b = fitted
        ends = interval_of(p_values, tests, effect, se, alpha)
        p = float(p_values(np.zeros(1))[0])
        return Estimate(effect, ends, p, alpha, se, q, b, self.coins, self.drawn)

    def fit(self) -> tuple[float, float, float, float] | None:
        """Effect, its model's standard error, q and b; None where there is nothing to fit.

        The effect is the one at which nothing is left of it: with q and b fitted to y - effect x.
        """
        if not self._able:
            return None
        effect = float(self._y[self._x > 0.5].mean() - self._y[self._x < 0.5].mean())
        z, b, k, rss = self._fitted(np.array([effect]))
        for _ in range(20):
            model = self._models[k[0]]
            px = model.p @ self._x
            step = float(px @ z[:, 0] / (px @ self._x))
            effect += step
            z, b, k, rss = self._fitted(np.array([effect]))
            if abs(step) < 1e-9:
                break
        model = self._models[k[0]]
        freedom = max(len(self._y) - model.fixed - 1, 1)
        se = math.sqrt(max(rss[0], 0.0) / freedom / float(self._x @ model.p @ self._x))
        return effect, se, Q_GRID[k[0]], float(b[0])

    def models(self, effects: Array) -> NDArray[np.int_]:
        """Which of Q_GRID fits what is left after each effect, by its number."""
        return self._fitted(effects)[2]

    def statistics(self, effects: Array) -> Array:
        """t of every outcome of the coins (rows; the first is the one that came up) and effect.

        Half of all outcomes: the mirror image of each has the same t with the other sign.
        """
        z, _, chosen, rss = self._fitted(effects)
        t = np.empty((len(self._signs), len(effects)))
        for k in np.unique(chosen):
            columns = chosen == k
            weights = self._weights(int(k))
            explained = weights @ z[:, columns]
            left = np.maximum(rss[columns] - explained**2, 1e-12 * rss[columns] + 1e-300)
            t[:, columns] = explained / np.sqrt(left)
        return t

    # --- how -------------------------------------------------------------------------------------

    def _fitted(self, effects: Array) -> tuple[Array, Array, NDArray[np.int_], Array]:
        """z (cells x effects) after the probe's part, its slope b, the model that REML chooses by
        its number in Q_GRID, and z'Pz; never looks at which outcome came up other than through z.
        """
        z = self._y[:, None] - np.outer(self._x, effects)
        b = np.zeros(len(effects))
        if self._probe is not None:
            dp = np.diff(self._probe)
            weighted = self._trust * dp
            error = self._trust.sum() * PROBE_SD_LOG**2
            b = weighted @ np.diff(z, axis=0) / (weighted @ dp + error)
            b = b if self._given is not None else np.clip(b, 0.0, PROBE_SLOPE_MAX)
            z = z - np.outer(self._probe, b)
        squares = np.array([np.einsum("it,it->t", z, m.p @ z) for m in self._models])
        floor = 1e-18 * (1 + np.max(np.abs(z), axis=0) ** 2)
        squares = np.maximum(squares, floor)
        freedom = len(self._y) - self._models[0].fixed
        penalties = np.array([m.penalty for m in self._models])
        chosen = np.argmin(freedom * np.log(squares) + penalties[:, None], axis=0)
        if self._given is not None:
            chosen = np.full_like(chosen, self._given)
        return z, b, chosen, squares[chosen, np.arange(len(effects))]

    def _weights(self, k: int) -> Array:
        """x'P / sqrt(x'Px) of every outcome under one model."""
        if k not in self._whitened:
            px = self._signs @ self._models[k].p
            size = np.sqrt(np.maximum(np.einsum("si,si->s", px, self._signs), 1e-300))
            self._whitened[k] = px / size[:, None]
        return self._whitened[k]


def steady_stands(mean: CoinTest, steady: CoinTest, alpha: float) -> bool:
    """Whether the mean's own test allows the effect that the steady times show.

    If not, the change is not the same for all tokens, and what counts is the mean.
    """
    fitted = steady.fit()
    return fitted is not None and mean.p(fitted[0]) > alpha


def joint_p_values(tests: Sequence[CoinTest], effects: Array) -> Array:
    """Two-sided p-values of one effect on all of several quantities of the same cells.

    The statistic of an outcome is the largest |t| of any of them, so that nothing is lost to
    testing several times but what the largest of several gains by chance.
    """
    t = np.max([np.abs(test.statistics(effects)) for test in tests], axis=0)
    return np.asarray((t >= t[0] * (1 - _TIE)).mean(axis=0))


def interval_of(
    p_values: PValues,
    tests: Sequence[CoinTest],
    centre: float,
    scale: float,
    alpha: float,
) -> tuple[float | None, float | None]:
    """The hull of all effects that are not rejected at `alpha`; None for an end without bound.

    Searched from `centre` outwards in fractions of `scale`, then in growing steps. The p-value need
    not fall steadily: it jumps where another model fits better, so that both sides of every such
    place are looked at. Ends are then narrowed to `_PRECISION_LOG`.
    """
    if max(least_p(test.coins) for test in tests) > alpha:
        return None, None
    near = np.arange(0.0, 10.0, 0.25)
    grown = 10.0 * 1.5 ** np.arange(60)
    reach = np.concatenate([near, grown]) * max(scale, 1e-6)
    reach = np.append(reach[reach < _FARTHEST_LOG], _FARTHEST_LOG)
    effects = np.concatenate([centre - reach[:0:-1], centre + reach])
    effects = np.sort(np.concatenate([effects, *(_jumps(test, effects) for test in tests)]))
    kept = np.flatnonzero(p_values(effects) > alpha)
    if not len(kept):
        return centre, centre
    ends: list[float | None] = []
    for last, outwards in ((int(kept[0]), -1), (int(kept[-1]), 1)):
        beyond = last + outwards
        if beyond in (-1, len(effects)):
            ends.append(None)
            continue
        inside, outside = effects[last], effects[beyond]
        while abs(outside - inside) > _PRECISION_LOG:
            between = np.linspace(inside, outside, 18)
            accepted = np.flatnonzero(p_values(between[1:-1]) > alpha)
            edge = int(accepted[-1]) + 1 if len(accepted) else 0
            inside, outside = between[edge], between[edge + 1]
        ends.append(float(outside))
    return ends[0], ends[1]


def _jumps(test: CoinTest, effects: Array) -> Array:
    """Both sides of every place between these effects at which another model is chosen."""
    models = test.models(effects)
    changed = np.flatnonzero(np.diff(models))
    low, high, left = effects[changed], effects[changed + 1], models[changed]
    while len(low) and np.max(high - low) > _PRECISION_LOG / 4:
        middle = (low + high) / 2
        same = test.models(middle) == left
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    return np.concatenate([low, high])


@dataclass(frozen=True)
class _Model:
    """P of one random walk, and what REML charges for it beside the squares.

    `fixed`: columns of X, the level and the trend.
    """

    p: Array
    penalty: float
    fixed: int


@lru_cache(maxsize=64)
def _models(noise: tuple[float, ...]) -> tuple[_Model, ...]:
    """One model for each of Q_GRID, over cells with this white variance, in run order."""
    at = np.arange(len(noise), dtype=float)
    design = np.column_stack([np.ones(len(at)), (at - at.mean()) / max(at.std(), 1e-12)])
    walk = np.minimum.outer(at, at)
    models = []
    for q in Q_GRID:
        v = np.diag(noise) + q * walk
        inverse = np.linalg.inv(v)
        weighted = inverse @ design
        information = design.T @ weighted
        p = inverse - weighted @ np.linalg.solve(information, weighted.T)
        penalty = float(np.linalg.slogdet(v)[1] + np.linalg.slogdet(information)[1])
        models.append(_Model((p + p.T) / 2, penalty, design.shape[1]))
    return tuple(models)


@lru_cache(maxsize=32)
def _outcomes(coins: int) -> Array:
    """Half of all outcomes of the coins as +1 (as it came up) and -1; the first is all +1.

    The other half are their mirror images. Beyond ENUMERATED_COINS a fixed drawing of them.
    """
    if coins <= ENUMERATED_COINS:
        bits = np.arange(2 ** (coins - 1))[:, None] >> np.arange(coins)[None, :]
        return np.where(bits & 1, -1.0, 1.0)
    drawn = np.random.default_rng(_DRAW_SEED).choice([-1.0, 1.0], (_DRAWS, coins))
    return np.vstack([np.ones(coins), drawn])
