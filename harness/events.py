"""What a session tells while it runs, for whoever shows it. Touches nothing."""

from __future__ import annotations

from dataclasses import dataclass

from harness.records import CellRecord, Excursion, GateOutcome, GateWhat, PlannedCell


@dataclass(frozen=True)
class Waiting:
    """About once a second before a cell; `seconds_left` of the pause, `reason` for it."""

    cell: PlannedCell
    total: int
    seconds_left: float
    reason: str


@dataclass(frozen=True)
class GateReading:
    """A condition as it stands now; `value` None: could not be read. Units as in `GateOutcome`."""

    what: GateWhat
    limit: float
    value: float | None
    sensor: str | None
    holds: bool


@dataclass(frozen=True)
class AtGate:
    """About every two seconds while a condition does not hold; `seconds_left` at most."""

    cell: PlannedCell
    total: int
    seconds_left: float
    readings: tuple[GateReading, ...]


@dataclass(frozen=True)
class GatePassed:
    """The wait for conditions is over, in whichever way; only where there were any."""

    cell: PlannedCell
    total: int
    outcomes: tuple[GateOutcome, ...]


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
class CellExcursion:
    """A sensor has just gone beyond what `session` allows, while the cell runs."""

    cell: PlannedCell
    total: int
    excursion: Excursion


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


SessionEvent = (
    Waiting
    | AtGate
    | GatePassed
    | CellStarted
    | CellProgress
    | CellExcursion
    | CellFinished
    | CellRepeated
)
