"""What one cell took per token, once warm: the numbers that cells are compared by. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.series import Array, Series
from harness.analysis.usable import speed
from harness.records import CellRecord

# fewer than this after the warm-up, and neither a mean nor a median says much
MIN_TOKENS = 8


@dataclass(frozen=True)
class CellTimes:
    """ln of milliseconds per token, one value for each cell, in the order given.

    `mean`: what tok/s is the inverse of, over the tokens after the warm-up. `median`: of the
    typical token. Without a per-token series of every cell, `mean` is that of all tokens, as tok/s
    gives it, and the other is None.
    """

    mean: Array
    median: Array | None = None

    @property
    def by_token(self) -> bool:
        return self.median is not None


def cell_times(
    records: Sequence[CellRecord], series: Mapping[int, Series], warmup_tokens: int
) -> CellTimes:
    """Times of cells that have a speed; `series` by the cell's index."""
    walls = [_steady(series.get(r.index), warmup_tokens) for r in records]
    whole = [w for w in walls if w is not None]
    if len(whole) < len(walls):
        return CellTimes(np.array([np.log(1000 / speed(r)) for r in records]))
    return CellTimes(
        mean=np.array([np.log(np.mean(w)) for w in whole]),
        median=np.array([np.log(np.median(w)) for w in whole]),
    )


def _steady(series: Series | None, warmup_tokens: int) -> Array | None:
    if series is None or len(series) < warmup_tokens + MIN_TOKENS:
        return None
    return series.wall_ms[warmup_tokens:]


def probes_log(records: Sequence[CellRecord]) -> Array | None:
    """ln of the mean of both compute probes of each cell; None unless every cell was probed."""
    found = []
    for record in records:
        probes = (record.probe.before, record.probe.after)
        values = [p.compute_ms for p in probes if p is not None and p.compute_ms]
        if not values:
            return None
        found.append(float(np.log(np.mean(values))))
    return np.array(found)
