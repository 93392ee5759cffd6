"""Which design an order of arms is, as `harness.plan` would have planned it. Touches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.errors import UsageError
from harness.importers.text import slug
from harness.planned import Plan, PlannedCell, Role
from harness.typed import nearest

DESIGNS = ("pairs", "abba", "four_cell", "survey")
_BASELINE_NAMES = ("b", "baseline", "base")
_SENTINEL = "sentinel"


@dataclass(frozen=True)
class Recognised:
    """The plan, and in words what was taken for granted."""

    plan: Plan
    notes: tuple[str, ...] = ()
    baseline_guessed: bool = False


def recognise(
    arms: Sequence[str],
    *,
    baseline: str | None,
    design: str | None,
    where: str,
    names: Sequence[str] | None = None,
    pairs: Sequence[int] | None = None,
) -> Recognised:
    """The plan of cells whose arms, in their order, are `arms`.

    Blocks that hold every arm once (or the baseline and one candidate) are `pairs`; B C1 C2 B, each
    candidate once between cells of the baseline, is `four_cell`; all else a `survey`, which
    compares nothing. `names`: of the cells, where they are not to be called after their arms.
    `pairs`: which pair each cell is of, where that is on record.
    Raises UsageError where `design` or `baseline` do not fit; `where` begins its line.
    """
    notes: list[str] = []
    base, guessed = _baseline(arms, baseline, where)
    candidates = tuple(dict.fromkeys(a for a in arms if a != base))
    found = "pairs" if design is None and pairs is not None else design
    if found is None:
        found = _natural_design(arms, base)
        if guessed and len(set(arms)) == len(arms) > 2:
            found = "survey"
        if found == "survey" and candidates:
            notes.append(
                "the order of the cells is neither one of pairs nor B, C1, C2, B: a survey, which "
                "compares nothing (--design to say otherwise)"
            )
    if found != "survey" and guessed:
        notes.append(guessed)
    if found in ("pairs", "abba"):
        blocks = _numbered(pairs) if pairs is not None else _blocks(arms, base, found)
        if isinstance(blocks, str):
            raise UsageError(f"{where}: not a design of {found}: {blocks}; leave --design out")
    else:
        blocks = [None] * len(arms)
    if found == "four_cell" and not candidates:
        raise UsageError(f"{where}: all cells are of {base}: there is nothing to compare")
    cells = _cells(arms, base, found, blocks, names)
    if found == "survey":
        return Recognised(Plan("survey", {}, cells, None, tuple(dict.fromkeys(arms))), tuple(notes))
    return Recognised(Plan(found, {}, cells, base, candidates), tuple(notes), bool(guessed))


def _baseline(arms: Sequence[str], named: str | None, where: str) -> tuple[str, str | None]:
    """The baseline, and in words how it was found where nobody named it."""
    if named is not None:
        if named not in arms:
            raise UsageError(
                f"{where}: no cell is of --baseline {named!r}{nearest(named, set(arms), 'there')}"
            )
        return named, None
    for arm in arms:
        if arm.lower() in _BASELINE_NAMES:
            return arm, None
    return arms[0], f"the first cell's arm, {arms[0]}, is taken for the baseline (--baseline)"


def _natural_design(arms: Sequence[str], base: str) -> str:
    candidates = [a for a in arms if a != base]
    if not candidates:
        return "survey"
    once = len(set(candidates)) == len(candidates)
    if arms[0] == arms[-1] == base and once:
        return "four_cell"
    return "survey" if isinstance(_blocks(arms, base, "pairs"), str) else "pairs"


def _blocks(arms: Sequence[str], base: str, design: str) -> list[int | None] | str:
    """The block of each cell, or in words what is in the way."""
    distinct = len(set(arms))
    if distinct < 2:
        return f"all cells are of {base}"
    # several candidates: all of them in each block, or one at a time
    sizes = dict.fromkeys((distinct, 2))
    whys = []
    for size in sizes:
        why = _misfit(arms, base, size, design)
        if why is None:
            step = 2 * size if design == "abba" else size
            return [i // step for i in range(len(arms))]
        whys.append(why)
    return whys[0]


def _numbered(pairs: Sequence[int]) -> list[int | None]:
    """Blocks in the order in which their first cells ran."""
    order = list(dict.fromkeys(pairs))
    return [order.index(p) for p in pairs]


def _misfit(arms: Sequence[str], base: str, size: int, design: str) -> str | None:
    """Why cells do not come in blocks of `size` arms; the last block may be unfinished."""
    step = 2 * size if design == "abba" else size
    for start in range(0, len(arms), step):
        block = list(arms[start : start + step])
        whole = len(block) == step
        half, back = block[:size], block[size:]
        fits = len(set(half)) == len(half) and (base in half or len(half) < size)
        if design == "abba":
            fits = fits and back == half[::-1][: len(back)]
        if not fits or (start == 0 and not whole):
            return f"cells {start} to {start + len(block) - 1} are {' '.join(block)}"
    return None


def _cells(
    arms: Sequence[str],
    base: str,
    design: str,
    blocks: Sequence[int | None],
    names: Sequence[str] | None,
) -> tuple[PlannedCell, ...]:
    cells: list[PlannedCell] = []
    seen: set[tuple[str, int | None]] = set()
    sentinels = sum(a == base for a in arms) - 1
    for i, (arm, block) in enumerate(zip(arms, blocks, strict=True)):
        role: Role = "baseline" if arm == base else "candidate"
        name = arm
        if design == "survey":
            role = "candidate"
        elif design == "four_cell" and arm == base and any(c.role == "baseline" for c in cells):
            role = "sentinel"
            n = sum(c.role == "sentinel" for c in cells) + 1
            name = _SENTINEL if n == sentinels else f"{_SENTINEL}_{n}"
        elif block is not None:
            half = "" if design == "pairs" else "b" if (arm, block) in seen else "a"
            name = f"{arm}_{block + 1:02d}{half}"
        seen.add((arm, block))
        if names is not None:
            name = names[i]
        cells.append(PlannedCell(i, slug(name, (c.name for c in cells)), arm, role, 0.0, block))
    return tuple(cells)
