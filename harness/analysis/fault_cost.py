"""What one major page fault cost, in wall time. Pure.

Only the number of faults is recorded, never their time. But it differs from token to token of one
cell, and if faults cost time, tokens with more of them took longer. That dependence is the cost,
as long as nothing else makes both: so each cell is compared with itself alone, less a trend over
its tokens (a cell that warms up has more faults and slower tokens first) and less what goes with
the bytes read. Its error is taken over cells, the unit of evidence, never over tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from harness.analysis.series import Array, Series
from harness.analysis.wall_parts import WARM_UP_TOKENS

# counted by how much of all variation of the faults each holds
LEAST_CELLS = 6
LEAST_TOKENS_WITH_FAULTS = 30


@dataclass(frozen=True)
class FaultCost:
    """Milliseconds per major fault, `low` to `high`; or None, and `reason` says why."""

    ms: float | None = None
    low: float = 0.0
    high: float = 0.0
    reason: str | None = None


def fault_cost(
    cells: Sequence[Series], *, alpha: float, first_token: int = WARM_UP_TOKENS
) -> FaultCost:
    """The dependence of computing time on faults within cells, with a 1 - alpha interval.

    Where computing was not recorded, of the wall time. Not a cost unless the interval is above 0.
    """
    sums = [s for cell in cells if (s := _of_cell(cell, first_token)) is not None]
    counts = [c.majflt[first_token:] for c in cells if c.majflt is not None]
    with_faults = sum(int(np.count_nonzero(n)) for n in counts)
    if with_faults < LEAST_TOKENS_WITH_FAULTS or len(sums) < LEAST_CELLS:
        return FaultCost(reason="too few tokens had any")
    sxy, sxx = (np.array(column) for column in zip(*sums, strict=True))
    slope = float(sxy.sum() / sxx.sum())
    # cells with few faults say little: as if there were so many alike
    n = float(sxx.sum() ** 2 / np.sum(sxx**2))
    if n < LEAST_CELLS:
        return FaultCost(reason="most of them were in few cells")
    scatter = float(np.sum((sxy - slope * sxx) ** 2)) * n / (n - 1)
    half = t_quantile(1 - alpha / 2, n - 1) * scatter**0.5 / float(sxx.sum())
    if slope - half <= 0:
        return FaultCost(reason="tokens with more of them took no longer, as far as one can tell")
    return FaultCost(slope, slope - half, slope + half)


def _of_cell(cell: Series, first_token: int) -> tuple[float, float] | None:
    """Sums of products of faults with time, and with themselves; None where no count varies."""
    time = cell.wall_ms if cell.compute_ms is None else cell.compute_ms
    if cell.majflt is None or len(cell) <= first_token + 3:
        return None
    faults, y = cell.majflt[first_token:], time[first_token:]
    if not (np.isfinite(faults).all() and np.isfinite(y).all()):
        return None
    known = [np.ones(len(y)), np.linspace(-1, 1, len(y))]
    if cell.read_bytes is not None and np.isfinite(cell.read_bytes[first_token:]).all():
        read = cell.read_bytes[first_token:]
        known.append(read / max(1.0, float(read.max())))
    x = _without(faults, np.column_stack(known))
    # what is left is rounding where the count does not vary, or varies with the rest alone
    if float(x @ x) <= 1e-9 * max(1.0, float(faults @ faults)):
        return None
    return float(x @ y), float(x @ x)


def _without(y: Array, columns: Array) -> Array:
    """`y` less its least-squares fit by `columns`."""
    fit, *_ = np.linalg.lstsq(columns, y, rcond=None)
    return y - columns @ fit


def t_quantile(p: float, dof: float) -> float:
    """Student's t, by the Cornish-Fisher expansion: within 0.2 % for 5 degrees of freedom or more.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    z = NormalDist().inv_cdf(p)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / dof + second / dof**2 + third / dof**3
