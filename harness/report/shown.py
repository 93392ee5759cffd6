"""Tables as they are shown to people, whether in HTML or in Markdown. Touches nothing.

A value that is None is said to be not measured; it is never an empty field, nor 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.analysis.tables import Column, Data, Value

NOT_MEASURED = "not measured"
Tone = Literal["good", "bad", "unsure", ""]

TONES: Mapping[str, Tone] = {
    **dict.fromkeys(("win", "provisional_win", "equivalent", "stable"), "good"),
    **dict.fromkeys(("ok", "PASS", "identical", "clean"), "good"),
    **dict.fromkeys(("loss", "provisional_loss", "failed", "killed", "differs"), "bad"),
    **dict.fromkeys(("refused", "KILLED", "FAIL"), "bad"),
    **dict.fromkeys(("inconclusive", "contaminated", "confounded", "unreadable"), "unsure"),
    **dict.fromkeys(("drifting", "throttled", "not_comparable", "unknown"), "unsure"),
    **dict.fromkeys(("replaced", "incomplete", "unusable", "not shown"), "unsure"),
}


# what stands well enough beside its neighbour in a terminal
_HEADS = {"": "no.", "from": "interval from", "to": "interval to"}


@dataclass(frozen=True)
class Cell:
    """`mark`: what is to be noticed of it, in a word or two; `absent`: there is no value."""

    text: str
    mark: str = ""
    tone: Tone = ""
    absent: bool = False


@dataclass(frozen=True)
class Shown:
    """`numeric`: by column, to the right; `notes`: under the table."""

    caption: str
    heads: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rows)


@dataclass
class Rows:
    """A table that is put together row by row of text; numbers come as text, too."""

    caption: str
    heads: Sequence[str]
    numeric: Collection[str] = ()
    notes: Sequence[str] = ()
    rows: list[tuple[Cell, ...]] = field(default_factory=list)

    def add(self, *cells: Cell | str | None) -> None:
        made = (c if isinstance(c, Cell) else _cell(c, "") for c in cells)
        self.rows.append(tuple(made))

    def shown(self) -> Shown:
        numeric = tuple(head in self.numeric for head in self.heads)
        return Shown(self.caption, tuple(self.heads), numeric, tuple(self.rows), tuple(self.notes))


def table_of(
    data: Data,
    caption: str,
    *,
    without: Collection[str] = (),
    notes: Iterable[str] = (),
) -> Shown:
    """`without`: keys of columns that are not shown.

    A column of text may have nothing to say in a row; one of numbers was then not measured.
    """
    columns = [(i, c) for i, c in enumerate(data.columns) if c.key not in without]
    return Shown(
        caption,
        tuple(_HEADS.get(c.title, c.title) for _, c in columns),
        tuple(bool(c.form) for _, c in columns),
        tuple(tuple(_value(row[i], c) for i, c in columns) for row in data.rows),
        tuple(notes),
    )


def without_empty_columns(table: Shown, words: str = NOT_MEASURED) -> Shown:
    """What no row has is named under the table, instead of a column of `not measured`."""
    empty = [
        i
        for i, head in enumerate(table.heads)
        if table.rows and all(row[i].absent for row in table.rows)
    ]
    if not empty:
        return table
    kept = [i for i in range(len(table.heads)) if i not in empty]
    # of words there may just be none
    named = [table.heads[i] for i in empty if table.numeric[i]]
    return Shown(
        table.caption,
        tuple(table.heads[i] for i in kept),
        tuple(table.numeric[i] for i in kept),
        tuple(tuple(row[i] for i in kept) for row in table.rows),
        (*table.notes, *([f"{words}: {'; '.join(named)}"] if named else [])),
    )


def number(value: float | None, form: str) -> Cell:
    """A number in this form, or that there is none."""
    return _cell(None if value is None else format(value, form), "")


def _value(value: Value, column: Column) -> Cell:
    if value is None and not column.form:
        return Cell("–", absent=True)
    return _cell(None if value is None else format(value, column.form), column.form)


def _cell(text: str | None, form: str) -> Cell:
    if text is None:
        return Cell(NOT_MEASURED, absent=True)
    return Cell(text, tone="" if form else tone_of(text))


def tone_of(word: str) -> Tone:
    """Of a verdict or a status; `FAIL (refused)` is a FAIL."""
    return TONES.get(word, TONES.get(word.partition(" (")[0], ""))


def spans(indices: Iterable[int]) -> str:
    """`0 to 13, 16, 20 21`: in order, three and more that follow on each other as their ends."""
    runs: list[list[int]] = []
    for i in sorted(indices):
        if runs and i == runs[-1][-1] + 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    return ", ".join(
        f"{run[0]} to {run[-1]}" if len(run) > 2 else " ".join(map(str, run)) for run in runs
    )
