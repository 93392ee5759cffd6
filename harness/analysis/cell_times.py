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

    `mean`: what tok/s is the inverse of, over the tokens after the warm-up. `steady`: the same with
    every token's time held to what the others of its cell, and the same token in the other cells,
    make plausible: without its stalls. `median`: of the typical token. Without a per-token series
    of every cell, `mean` is that of all tokens, as tok/s gives it, and the others are None.
    """

    mean: Array
    steady: Array | None = None
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
        steady=_steady_log(whole),
        median=np.array([np.log(np.median(w)) for w in whole]),
    )


# a token further off than so many robust standard deviations is held at them
_STALL_SDS = 5.0


def _steady_log(walls: Sequence[Array]) -> Array:
    """ln of the mean with stalls held back; blind to which cell is of which arm.

    Every cell decodes the same text, so that a token's time is its cell's level times what the
    token is in all cells (the median over them). What is left is small but for stalls.
    """
    if not walls:
        return np.zeros(0)
    tokens = min(len(w) for w in walls)
    logs = np.log(np.array([w[:tokens] for w in walls]))
    content = np.median(logs - np.median(logs, axis=1, keepdims=True), axis=0)
    levels = np.median(logs - content, axis=1, keepdims=True)
    left = logs - content - levels
    bound = _STALL_SDS * 1.4826 * np.median(np.abs(left))
    held = content + levels + np.clip(left, -bound, bound)
    steady: Array = np.log(np.mean(np.exp(held), axis=1))
    return steady


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
