"""What a session tells while it runs, for whoever shows it. Touches nothing."""

from __future__ import annotations

from dataclasses import dataclass

from harness.records import CellRecord, PlannedCell


@dataclass(frozen=True)
class Waiting:
    """About once a second before a cell; `seconds_left` of the pause, `reason` for it."""

    cell: PlannedCell
    total: int
    seconds_left: float
    reason: str


@dataclass(frozen=True)
class CellStarted:
    """The launcher is running; `total` cells in the plan."""

    cell: PlannedCell
    total: int


@dataclass(frozen=True)
class CellProgress:
    """At most once a second: tokens out so far, and tokens per second since the last of these."""

    cell: PlannedCell
    total: int
    tokens: int
    n_predict: int
    tok_s: float | None


@dataclass(frozen=True)
class CellFinished:
    """The record is on disk and in the journal."""

    cell: PlannedCell
    total: int
    record: CellRecord


@dataclass(frozen=True)
class CellRepeated:
    """The cell under way does not count, for `reason`; it is run again after its pause."""

    cell: PlannedCell
    total: int
    reason: str


SessionEvent = Waiting | CellStarted | CellProgress | CellFinished | CellRepeated
