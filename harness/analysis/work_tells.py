"""Cells that did not do the work of their arm. Pure: one small rule for each tell.

As in `session_tells`: a `Finding` for each cell, by its place in the order of indices.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.counters import compare_identity, compare_work, drops, flag_value
from harness.analysis.session_tells import Records, by_arm
from harness.analysis.tells import NOTHING, Finding
from harness.records import CellRecord
from harness.words import counted


def counters_differ(records: Records, *, read_bytes_tolerance_pct: float) -> list[Finding]:
    """Cells of one arm that did not do what most of it did; all of them where there is no most.

    Where it is not known what prompt each was given (an imported campaign), nothing shows that they
    were to do the same: with no majority that is a note.
    """
    found = [NOTHING] * len(records)
    for places in by_arm(records):
        classes = _classes([records[i] for i in places], read_bytes_tolerance_pct)
        if len(classes) < 2:
            continue
        largest = max(classes, key=len)
        majority = len(largest) * 2 > len(places)
        asked_alike = all(_prompt_is_known(records[i]) for i in places)
        for members in classes:
            if majority and members is largest:
                continue
            other = largest if members is not largest else next(c for c in classes if c != largest)
            for k in members:
                cell, against = records[places[k]], records[places[other[0]]]
                what = "; ".join(_differences(cell, against, read_bytes_tolerance_pct))
                words = f"counters differ within arm {cell.arm}: {what}"
                found[places[k]] = (
                    Finding((words,)) if majority or asked_alike else Finding(notes=(words,))
                )
    return found


def not_as_asked(records: Records) -> list[Finding]:
    """Cells shorter or longer than their command line asked for.

    A note where all of the arm ended there, as a text does at its end.
    """
    found = [NOTHING] * len(records)
    for places in by_arm(records):
        counts = {records[i].counters.tokens for i in places}
        for i in places:
            asked, tokens = _asked(records[i].argv), records[i].counters.tokens
            if asked is None or tokens is None or asked == tokens:
                continue
            words = f"decoded {counted(tokens, 'token')}, {asked} were asked for"
            alike = len(places) > 1 and len(counts) == 1
            found[i] = (
                Finding(notes=(f"{words}, as in its whole arm",)) if alike else Finding((words,))
            )
    return found


def _prompt_is_known(record: CellRecord) -> bool:
    return record.identity.prompt_sha256 is not None or record.identity.text_sha256 is not None


def _asked(argv: tuple[str, ...]) -> int | None:
    for flag in ("-n", "--n-predict", "--predict"):
        value = flag_value(argv, flag)
        if value is not None and value.isdigit():
            return int(value)
    return None


def _classes(cells: Sequence[CellRecord], tolerance_pct: float) -> list[list[int]]:
    """Places of cells whose work agrees with the first of their class."""
    classes: list[list[int]] = []
    for i, cell in enumerate(cells):
        for members in classes:
            if not _differences(cell, cells[members[0]], tolerance_pct):
                members.append(i)
                break
        else:
            classes.append([i])
    return classes


def _differences(a: CellRecord, b: CellRecord, tolerance_pct: float) -> tuple[str, ...]:
    """Measured in both and unequal. Imported cells that drop are held to their tokens alone."""
    if (a.counters.dropped or b.counters.dropped) and not (drops(a) and drops(b)):
        x, y = a.counters.tokens, b.counters.tokens
        if x is None or y is None or x == y:
            return ()
        return (f"tokens {x} in {a.cell}, {y} in {b.cell}",)
    return compare_work(a, b, tolerance_pct).differing + compare_identity(a, b).differing
