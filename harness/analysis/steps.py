"""Change points in a cell's trace: did the speed of the device move while the cell ran? Pure.

A trace is ln of the wall time per token. Most of its variation is content, repeated token for token
by every cell that decodes the same text; so content is taken out first, by the other cells of the
arm, and where there are none by the bytes that each token read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.series import Array, Series

# traces of one text under one configuration read the same bytes token by token, up to what timing
# moves (speculation, drops); those of different texts differ by more than this share of all bytes
_SAME_TEXT_BYTES_SHARE = 0.2
_MAX_LAG1 = 0.95
# the method is meant for cells of 64 to 128 tokens; at least so many stretches, below twice as many
_STRETCHES = 112
MIN_CELLS = 3  # with two, each is the other's mirror image, and nothing says which of them moved


@dataclass(frozen=True)
class Step:
    """The best split of a trace: from `token` on (index into it) all is `change` slower (log).

    `z`: of the rank sum before the split, reduced for the autocorrelation of the trace; positive is
    slower after it.
    """

    token: int
    change: float
    z: float


def best_step(trace: Array, min_side: int) -> Step | None:
    """The split with the largest rank-sum z; None when a side would be shorter than `min_side`.

    Ranks, so that single stalls of seconds weigh no more than any slow token. The variance of the
    rank sum is that of an AR(1) series: times (1 + rho)/(1 - rho), rho the lag-1 autocorrelation of
    the ranks about their means on both sides, taken as 0 where it is negative. A long trace is
    taken in stretches, each its median token: neighbours that come and go by the second tie
    together hundreds of fast tokens, which the next token's correlation does not show.
    """
    stretch = max(1, len(trace) // _STRETCHES)
    points = _medians(trace, stretch)
    n, side = len(points), -(-min_side // stretch)
    if n < 2 * side:
        return None
    ranks = np.empty(n)
    ranks[np.argsort(points, kind="stable")] = np.arange(1, n + 1)
    k = np.arange(side, n - side + 1)
    before = np.cumsum(ranks)[k - 1]
    z = (k * (n + 1) / 2 - before) / np.sqrt(k * (n - k) * (n + 1) / 12)
    at = int(np.argmax(np.abs(z)))
    split = int(k[at])
    rest = np.concatenate(
        (ranks[:split] - ranks[:split].mean(), ranks[split:] - ranks[split:].mean())
    )
    power = float(rest @ rest)
    rho = float(rest[1:] @ rest[:-1]) / power if power > 0 else 0.0
    rho = min(max(rho, 0.0), _MAX_LAG1)
    token = split * stretch
    return Step(
        token=token,
        change=float(np.median(trace[token:]) - np.median(trace[:token])),
        z=float(z[at]) / float(np.sqrt((1 + rho) / (1 - rho))),
    )


def _medians(trace: Array, stretch: int) -> Array:
    """Of stretches of so many tokens; those that are left over at the end are left out."""
    whole = len(trace) // stretch
    return np.asarray(np.median(trace[: whole * stretch].reshape(whole, stretch), axis=1), float)


def against_others(cells: Sequence[Series], warmup_tokens: int) -> list[Array | None]:
    """Traces of cells of one arm without what they have in common: the median of the others.

    From token `warmup_tokens` on, each about its own median. None for a cell with fewer than two
    others that decoded as many tokens of the same text.
    """
    found: list[Array | None] = [None] * len(cells)
    for length in {len(c) for c in cells}:
        places = [i for i, c in enumerate(cells) if len(c) == length > warmup_tokens]
        places = _of_one_text(cells, places)
        if len(places) < MIN_CELLS:
            continue
        traces = np.log(np.array([cells[i].wall_ms[warmup_tokens:] for i in places]))
        traces -= np.median(traces, axis=1, keepdims=True)
        traces -= _typical(traces)
        for i, trace in zip(places, traces, strict=True):
            found[i] = trace
    return found


def against_bytes(cell: Series, warmup_tokens: int) -> Array | None:
    """The trace of a cell without what the bytes read by each token explain (a straight line).

    None for a cell that ends in the warm-up. What of content shows otherwise stays in.
    """
    wall = cell.wall_ms[warmup_tokens:]
    if len(wall) == 0:
        return None
    read = None if cell.read_bytes is None else cell.read_bytes[warmup_tokens:]
    expected = np.full(len(wall), np.median(wall))
    if read is not None and np.isfinite(read).all() and np.ptp(read) > 0:
        # stalls are no part of the line
        calm = wall <= np.quantile(wall, 0.9)
        if np.ptp(read[calm]) > 0:
            slope, level = np.polyfit(read[calm] / np.mean(read), wall[calm], 1)
            line = level + slope * read / np.mean(read)
            if slope > 0 and line.min() > 0:
                expected = line
    return np.asarray(np.log(wall / expected), float)


def _typical(traces: Array) -> Array:
    """For each row of (cells, tokens) the median over the other rows, token by token.

    A row that counts towards its own median hides a third of its step among six. With three rows it
    has to: the median of the other two would show the step of one in the other.
    """
    cells = len(traces)
    if cells <= MIN_CELLS:
        return np.asarray(np.median(traces, axis=0, keepdims=True), float)
    order = np.argsort(traces, axis=0, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(cells)[:, None], axis=0)
    ordered = np.take_along_axis(traces, order, axis=0)

    def among_others(k: int) -> Array:
        """The k-th smallest of the others, for each row."""
        return np.asarray(np.where(ranks <= k, ordered[k + 1], ordered[k]), float)

    others = cells - 1
    middle = among_others((others - 1) // 2) + among_others(others // 2)
    return np.asarray(middle / 2, float)


def _of_one_text(cells: Sequence[Series], places: list[int]) -> list[int]:
    """Those of `places` whose bytes by token do not show another text than the others'."""
    reads = {
        i: r for i in places if (r := cells[i].read_bytes) is not None and np.isfinite(r).all()
    }
    if len(reads) < MIN_CELLS:
        return places
    typical = np.median(np.array(list(reads.values())), axis=0)
    limit = _SAME_TEXT_BYTES_SHARE * float(typical.sum())
    return [i for i in places if i not in reads or float(np.abs(reads[i] - typical).sum()) <= limit]
