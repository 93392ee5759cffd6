"""`import bmoe`: sessions of the other engine (BigMoeOnEdge) into campaigns.

Reads the directory it is named. Which cells are of one arm, and whether they compare anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UsageError
from harness.importers import measures
from harness.importers.bmoe_cells import Cell, Session, read_session
from harness.importers.bmoe_files import SessionFiles, find_sessions
from harness.importers.bmoe_record import imported_cell, prompts_of
from harness.importers.design import Recognised, recognise
from harness.importers.text import slug
from harness.importers.write import Imported, raw_names
from harness.typed import nearest

# a single letter, or the number of a run, at the end of a name: the same once more
_REPEAT = re.compile(r"[-_.](?:[a-d]|r(?:un|ep)?[-_]?\d{1,2})$")
_DATED = re.compile(r"20\d{6}[-_T]\d{6}")
_SAME_BYTES = 1e-3


@dataclass(frozen=True)
class _Wish:
    """What the command line says of the comparison."""

    baseline: str | None
    design: str | None


def read_sessions(
    directory: Path, *, name: str | None, baseline: str | None, design: str | None
) -> list[Imported]:
    """Every session in `directory`, one campaign each.

    `baseline`: a cell or an arm; it must be in one session at least. Raises UsageError.
    """
    found = [(files, read_session(files)) for files in find_sessions(directory)]
    if baseline is not None:
        names = {
            n
            for _, s in found
            for c, arm in zip(s.cells, arms_of(s.cells), strict=True)
            for n in (c.name, arm)
        }
        if baseline not in names:
            raise UsageError(
                f"{directory}: no cell is called --baseline {baseline!r}"
                f"{nearest(baseline, names, 'cells')}"
            )
    several = len(found) > 1
    imported = []
    runs: dict[str, str] = {}
    for files, session in found:
        own = files.directory.resolve().name
        title = own if name is None else f"{name}-{own}" if several else name
        imported.append(_campaign(files, session, slug(title), _Wish(baseline, design), runs))
    return imported


def _campaign(
    files: SessionFiles,
    session: Session,
    name: str,
    wish: _Wish,
    runs: dict[str, str],
) -> Imported:
    arms = arms_of(session.cells)
    found = _design(session, arms, wish, str(files.directory))
    notes = [*found.notes]
    if len(session.cells) > 1:
        notes.append(f"the order of the cells is {session.order}")
    for cell in session.cells:
        earlier = runs.setdefault(cell.sha256, name) if cell.sha256 is not None else name
        if earlier != name:
            notes.append(f"{cell.name} has the same bytes as a run of {earlier}: count it once")
    cells = tuple(
        imported_cell(cell, planned, files.directory)
        for cell, planned in zip(session.cells, found.plan.cells, strict=True)
    )
    return Imported(
        name=name,
        plan=found.plan,
        cells=cells,
        facts={
            "kind": "bmoe",
            "source": str(files.directory.resolve()),
            "design": found.plan.design,
            "baseline": found.plan.baseline,
            "order": session.order,
        },
        files=raw_names(session.files, files.directory),
        passed_over=tuple(session.passed_over),
        notes=tuple(notes),
    )


def _design(session: Session, arms: Sequence[str], wish: _Wish, where: str) -> Recognised:
    """A session compares only where that is asked for, or where its known order shows it."""
    names = [c.name for c in session.cells]
    base, asked = wish.baseline, wish.design
    if base in names:
        base = arms[names.index(base)]
    elif base not in arms:
        base = None
    shown = session.order_is_known and len(set(arms)) < len(arms)
    if asked is None and not shown:
        asked = "survey" if base is None else "four_cell"
    found = recognise(arms, baseline=base, design=asked, where=where, names=names)
    if asked is None and base is not None and found.plan.design == "survey":
        found = recognise(arms, baseline=base, design="four_cell", where=where, names=names)
    return found


# --- arms ----------------------------------------------------------------------------------------


def arms_of(cells: Sequence[Cell]) -> list[str]:
    """The arm of each cell: cells of equal settings that had the same prompt are of one arm.

    Where no settings are known, cells whose names differ as those of repeats do (`base_a`,
    `base_b`) and that made as many tokens from as many bytes. Else every cell is its own arm.
    """
    groups: list[list[Cell]] = []
    for cell in cells:
        group = next((g for g in groups if _same_arm(g[0], cell)), None)
        if group is None:
            groups.append([cell])
        else:
            group.append(cell)
    named: dict[int, str] = {}
    taken: set[str] = set()
    for group in groups:
        name = _common_name([c.name for c in group])
        if name in taken or not name:
            name = group[0].name
        taken.add(name)
        named |= {id(c): name for c in group}
    return [named[id(c)] for c in cells]


def _same_arm(a: Cell, b: Cell) -> bool:
    if a.tokens is None or b.tokens is None:
        return False
    if a.tokens.settings or b.tokens.settings:
        return a.tokens.settings == b.tokens.settings and prompts_of(a) == prompts_of(b) is not None
    repeats = _REPEAT.sub("", a.name) == _REPEAT.sub("", b.name)
    x, y = (measures.counters(c.tokens.rows) for c in (a, b) if c.tokens is not None)
    if not repeats or x.tokens != y.tokens or x.read_bytes is None or y.read_bytes is None:
        return False
    return abs(x.read_bytes - y.read_bytes) <= _SAME_BYTES * max(x.read_bytes, y.read_bytes)


def _common_name(names: Sequence[str]) -> str:
    if len(names) == 1 or any(_DATED.search(n) for n in names):
        return names[0]
    low, high = min(names), max(names)
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    common = low[:same]
    if any(len(n) > len(common) and n[len(common)].isalnum() for n in names):
        # the names part inside a word: back to where it begins
        common = re.sub(r"[A-Za-z0-9]+$", "", common)
    return common.rstrip("-_.")
