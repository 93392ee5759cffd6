"""Per-token series of one cell, as arrays. Pure: rows in, arrays out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """What every decoded token took; one float64 array of shape (tokens,) for each quantity.

    None: not recorded at all. NaN: not recorded for that token. `wall_ms` is whole: a cell in
    which a token's wall time is missing has no series. As in the engine's `--csv` (docs/engine.md):
    wall = compute + stall + manage; `io_ms` is time with a read in flight, beside computing.
    """

    wall_ms: Array
    io_ms: Array | None = None
    compute_ms: Array | None = None
    stall_ms: Array | None = None
    manage_ms: Array | None = None
    cpu_ms: Array | None = None
    read_bytes: Array | None = None
    requests: Array | None = None
    hits: Array | None = None
    dropped: Array | None = None
    majflt: Array | None = None
    minflt: Array | None = None
    invol_ctx: Array | None = None
    swap_bytes: Array | None = None
    mem_available_bytes: Array | None = None

    def __len__(self) -> int:
        """Tokens."""
        return len(self.wall_ms)


def series_of(rows: Sequence[Mapping[str, float | None]]) -> Series | None:
    """The series of a cell's rows by column name; None without rows, or a wall time for each."""
    walls = [row.get("wall_ms") for row in rows]
    if not walls or any(w is None or not w > 0 for w in walls):
        return None
    columns: dict[str, Array] = {}
    for f in fields(Series):
        values = [row.get(f.name) for row in rows]
        if any(v is not None for v in values):
            columns[f.name] = np.array([np.nan if v is None else v for v in values], float)
    return Series(**columns)
