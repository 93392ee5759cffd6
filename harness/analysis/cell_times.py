"""What one cell took per token, once warm: the numbers that cells are compared by. Pure.

All of it is computed without regard to which cell is of which arm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.series import Array, Series
from harness.analysis.usable import speed
from harness.records import CellRecord

# fewer than this after the warm-up, and neither a mean nor a median says much
MIN_TOKENS = 8
# a token further off than so many robust standard deviations is held at them
_STALL_SDS = 5.0
# a cell moved that did so by more than so many of the usual differences of its thirds
_MOVED_SDS = 2.5
_LEAST_MOVE_LOG = 0.006


@dataclass(frozen=True)
class TokenTimes:
    """ln of milliseconds per token, one value for each cell, from its tokens' times.

    `steady`: the mean with every token's time held to what the other tokens of its cell, and the
    same token in the other cells, make plausible: without its stalls. `at_end`: the same, but of a
    cell whose typical token moved, as it was in the last third. `median`: of the typical token.
    `move`: how much slower the typical token was in the last third than in the first. `held_ms`:
    what `steady` is the mean of, of shape (cells, tokens).
    """

    steady: Array
    at_end: Array
    median: Array
    move: Array
    held_ms: Array


@dataclass(frozen=True)
class CellTimes:
    """`mean`: ln of the milliseconds per token that tok/s is the inverse of, one for each cell.

    Over the tokens after the warm-up; without a per-token series of every cell over all tokens, and
    then `tokens` is None.
    """

    mean: Array
    tokens: TokenTimes | None = None


def cell_times(
    records: Sequence[CellRecord], series: Mapping[int, Series], warmup_tokens: int
) -> CellTimes:
    """Times of cells that have a speed, in the order given; `series` by the cell's index."""
    walls = [_after_warmup(series.get(r.index), warmup_tokens) for r in records]
    whole = [w for w in walls if w is not None]
    if not whole or len(whole) < len(walls):
        return CellTimes(np.array([np.log(1000 / speed(r)) for r in records]))
    tokens = min(len(w) for w in whole)
    return CellTimes(
        mean=np.array([np.log(np.mean(w)) for w in whole]),
        tokens=_token_times(np.log(np.array([w[:tokens] for w in whole]))),
    )


def _token_times(logs: Array) -> TokenTimes:
    """From ln of milliseconds, cells x tokens.

    Every cell decodes the same text, so that a token's time is its cell's level times what the
    token is in all cells (the median over them). What is left is small but for stalls.
    """
    content = np.median(logs - np.median(logs, axis=1, keepdims=True), axis=0)
    own = logs - content
    levels = np.median(own, axis=1, keepdims=True)
    left = own - levels
    bound = _STALL_SDS * 1.4826 * np.median(np.abs(left))
    held_ms = np.exp(content + levels + np.clip(left, -bound, bound))
    steady = np.log(np.mean(held_ms, axis=1))
    third = logs.shape[1] // 3
    last = np.median(own[:, -third:], axis=1)
    move = last - np.median(own[:, :third], axis=1)
    off = np.abs(move - np.median(move))
    usual = max(float(np.quantile(off, 0.4)) / 0.524, _LEAST_MOVE_LOG)
    shift = last - levels[:, 0]
    return TokenTimes(
        steady=steady,
        at_end=steady + np.where(off > _MOVED_SDS * usual, shift - np.median(shift), 0.0),
        median=np.median(logs, axis=1),
        move=move,
        held_ms=held_ms,
    )


def _after_warmup(series: Series | None, warmup_tokens: int) -> Array | None:
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
