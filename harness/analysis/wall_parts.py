"""What the mean token of one cell spent its time on, and what work it was. Pure.

Two engines write such times, and what adds up to the wall time differs between them and between
their modes. So it is told from the numbers which parts add up, not from a name:

- waiting + managing + computing, with reads beside them (`overlapped`): `stall_ms` is the time in
  which computing waited for a read, however long the read itself took;
- reading + managing + computing (`serial`): nothing else happens during a read;
- neither (`unsplit`): a model that is mapped reads through page faults, inside computing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harness.analysis.cell_times import MIN_TOKENS
from harness.analysis.series import Series
from harness.records import CellRecord

# the first tokens of a cell fill the cache; the verdict leaves them out, too
WARM_UP_TOKENS = 16
# of the wall time: how far recorded parts may be from adding up to it
ADDS_UP_WITHIN = 0.02

Split = Literal["overlapped", "serial", "unsplit"]


@dataclass(frozen=True)
class CellParts:
    """Means over the tokens after the warm-up: milliseconds, bytes and faults per token.

    None: not recorded for every such token. `reading_ms`: time with a read in flight. Shares are
    0..1.
    """

    index: int
    split: Split
    wall_ms: float
    reading_ms: float | None = None
    waiting_ms: float | None = None
    computing_ms: float | None = None
    managing_ms: float | None = None
    faults: float | None = None
    read_bytes: float | None = None
    hit_rate: float | None = None
    dropped_share: float | None = None


def cell_parts(
    record: CellRecord, series: Series | None, first_token: int = WARM_UP_TOKENS
) -> CellParts | None:
    """None where too few tokens after the warm-up have times, or the cell did not end well."""
    if record.status != "ok" or series is None or len(series) < first_token + MIN_TOKENS:
        return None

    def mean(name: str) -> float | None:
        values = getattr(series, name)
        after = None if values is None else values[first_token:]
        return None if after is None or not np.isfinite(after).all() else float(after.mean())

    wall = float(series.wall_ms[first_token:].mean())
    requests, hits = mean("requests"), mean("hits")
    read_bytes, metrics = mean("read_bytes"), record.metrics
    split, waiting, computing = _split(wall, mean)
    return CellParts(
        index=record.index,
        split=split,
        wall_ms=wall,
        reading_ms=mean("io_ms"),
        waiting_ms=waiting,
        computing_ms=computing,
        managing_ms=mean("manage_ms"),
        faults=mean("majflt"),
        read_bytes=metrics.bytes_per_token if read_bytes is None else read_bytes,
        hit_rate=hits / requests if hits is not None and requests else metrics.hit_rate,
        dropped_share=metrics.dropped_share,
    )


def _split(
    wall: float, mean: Callable[[str], float | None]
) -> tuple[Split, float | None, float | None]:
    """How the wall time is split, and of it waiting and computing in milliseconds."""
    io, stall, compute = mean("io_ms"), mean("stall_ms"), mean("compute_ms")
    manage = mean("manage_ms") or 0.0
    if (io is None and stall is None) or _reads_unseen(io, stall, mean):
        return "unsplit", None, None
    if compute is None:
        if stall is not None and (stall > 0 or not io):
            return "overlapped", stall, wall - stall - manage
        return ("serial", None, wall - io - manage) if io is not None else ("unsplit", None, None)

    rest = wall - compute - manage
    off_stall = np.inf if stall is None else abs(rest - stall)
    off_io = np.inf if io is None else abs(rest - io)
    if min(off_stall, off_io) <= ADDS_UP_WITHIN * wall:
        # without overlap the native engine's two are equal, and waiting is the word for both
        enough = max(off_io, ADDS_UP_WITHIN * wall) if stall else off_io
        return ("overlapped", stall, compute) if off_stall <= enough else ("serial", None, compute)
    # reads took longer than is left beside computing: they ran beside it, and the rest was waiting
    if stall is None and io is not None and 0 <= rest < io:
        return "overlapped", rest, compute
    return "unsplit", None, None


def _reads_unseen(
    io: float | None, stall: float | None, mean: Callable[[str], float | None]
) -> bool:
    """Noughts of an engine that did not stream, which no read of its own can tell from paging."""
    return not any((io, stall, mean("read_bytes"), mean("requests")))
