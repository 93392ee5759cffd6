"""Tables of what a verdict rests on: cells, pairs, looks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.tables import Column, Data
from harness.verdicts import CellVerdict, LookRow, PairRow


def cells_table(cells: Sequence[CellVerdict], *, brief: bool = False) -> Data:
    """One row a cell; `brief`: those whose timing cannot be attributed to their arm."""
    columns = (
        Column("index", "", "d"),
        Column("cell", "cell"),
        Column("status", "status"),
        Column("reasons", "reasons"),
        Column("notes", "notes"),
    )
    shown = [c for c in cells if not brief or c.status in ("contaminated", "unusable")]
    rows = ((c.index, c.cell, c.status, _joined(c.reasons), _joined(c.notes)) for c in shown)
    return Data(columns, tuple(rows))


def pairs_table(pairs: Sequence[PairRow], *, brief: bool = False) -> Data:
    """One row a pair (or a block forth and back); `brief`: those that were left out."""
    columns = (
        Column("candidate", "candidate"),
        Column("block", "block", "d"),
        Column("baseline_cells", "baseline cells"),
        Column("candidate_cells", "candidate cells"),
        Column("status", "status"),
        Column("effect_pct", "tok/s %", "+.1f"),
        Column("reasons", "reasons"),
    )
    rows = (
        (
            p.candidate,
            p.block,
            _numbers(p.baseline_cells),
            _numbers(p.candidate_cells),
            p.status,
            p.effect_pct,
            _joined(p.reasons),
        )
        for p in pairs
        if not brief or p.status != "clean"
    )
    return Data(columns, tuple(rows))


def looks_table(looks: Sequence[LookRow], *, brief: bool = False) -> Data:
    """How each estimate closed in, by clean pairs; `brief`: where it could have been decided."""
    columns = (
        Column("candidate", "candidate"),
        Column("clean_pairs", "clean pairs", "d"),
        Column("pairs", "of pairs", "d"),
        Column("effect_pct", "tok/s %", "+.1f"),
        Column("low_pct", "from", "+.1f"),
        Column("high_pct", "to", "+.1f"),
        Column("p", "p", ".4f"),
        Column("alpha", "decides at", ".4f"),
        Column("decided", "decided"),
    )
    rows = (
        (
            look.candidate,
            look.clean_pairs,
            look.pairs,
            look.effect_pct,
            None if look.ci_pct is None else look.ci_pct[0],
            None if look.ci_pct is None else look.ci_pct[1],
            look.p,
            look.alpha,
            look.decided,
        )
        for look in looks
        if not brief or look.alpha is not None
    )
    return Data(columns, tuple(rows))


def _joined(words: Sequence[str]) -> str | None:
    return "; ".join(words) or None


def _numbers(indices: Sequence[int]) -> str:
    return " ".join(map(str, indices))
