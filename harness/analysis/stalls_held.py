"""Tokens whose time was held to what is plausible, and which of their parts gave way. Pure.

A verdict that is read with stalls held back (`cell_times`) needs parts that add up to the times it
was read from. What is taken from a token's wall time is taken from the parts that took longer than
the same token's did in the other cells, each by its share of that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from harness.analysis.series import Array, Series
from harness.analysis.wall_parts import Split

_IN_WALL: dict[Split, tuple[str, ...]] = {
    "overlapped": ("stall_ms", "compute_ms", "manage_ms"),
    "serial": ("io_ms", "compute_ms", "manage_ms"),
    "unsplit": (),
}


def held_series(
    cells: Sequence[Series], splits: Sequence[Split], held_ms: Array, first_token: int
) -> list[Series]:
    """The cells from their first token after the warm-up on, with its times held.

    `held_ms`: of shape (cells, tokens after the warm-up of the shortest cell), plausible wall
    times. `io_ms` beside computing gives way by as much as waiting does.
    """
    tokens = held_ms.shape[1]
    cut = [
        _whole(_cut(cell, first_token, tokens), split)
        for cell, split in zip(cells, splits, strict=True)
    ]
    typical = {
        name: np.median(known, axis=0)
        for name in {n for names in _IN_WALL.values() for n in names}
        if (known := [v for c in cut if (v := getattr(c, name)) is not None])
    }
    return [
        _held(cell, _IN_WALL[split], typical, held)
        for cell, split, held in zip(cut, splits, held_ms, strict=True)
    ]


def _cut(cell: Series, first_token: int, tokens: int) -> Series:
    known = {
        f.name: v for f in dataclasses.fields(Series) if (v := getattr(cell, f.name)) is not None
    }
    return Series(**{name: v[first_token:][:tokens] for name, v in known.items()})


def _whole(cell: Series, split: Split) -> Series:
    """With the one part of an overlapped cell that is known only as what the others leave."""
    manage: Array | float = 0.0 if cell.manage_ms is None else cell.manage_ms
    if split == "overlapped" and cell.stall_ms is None and cell.compute_ms is not None:
        return dataclasses.replace(cell, stall_ms=cell.wall_ms - cell.compute_ms - manage)
    if split == "overlapped" and cell.compute_ms is None and cell.stall_ms is not None:
        return dataclasses.replace(cell, compute_ms=cell.wall_ms - cell.stall_ms - manage)
    if split == "serial" and cell.compute_ms is None and cell.io_ms is not None:
        return dataclasses.replace(cell, compute_ms=cell.wall_ms - cell.io_ms - manage)
    return cell


def _held(
    cell: Series, in_wall: Sequence[str], typical: Mapping[str, Array], held: Array
) -> Series:
    removed = cell.wall_ms - held
    parts = {name: v for name in in_wall if (v := getattr(cell, name)) is not None}
    if not parts:
        return dataclasses.replace(cell, wall_ms=held)
    over = {name: np.maximum(v - typical[name], 0.0) for name, v in parts.items()}
    over_all = np.sum(list(over.values()), axis=0)
    whole = np.sum(list(parts.values()), axis=0)
    # a token that is held up, or whose parts are not on record in full, gives way evenly
    uneven = (removed > 0) & (over_all >= removed)
    left = {
        name: v
        - removed
        * np.where(
            uneven,
            over[name] / np.where(over_all > 0, over_all, 1.0),
            v / np.where(whole > 0, whole, 1.0),
        )
        for name, v in parts.items()
    }
    if cell.stall_ms is not None and "stall_ms" in left and cell.io_ms is not None:
        left["io_ms"] = np.maximum(cell.io_ms - (cell.stall_ms - left["stall_ms"]), 0.0)
    return dataclasses.replace(cell, wall_ms=held, **left)
