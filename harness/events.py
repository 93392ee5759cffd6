"""What a session tells while it runs, for whoever shows it. Touches nothing."""

from __future__ import annotations

from dataclasses import dataclass

from harness.planned import PlannedCell
from harness.readings import Excursion, GateOutcome, GateWhat
from harness.records import CellRecord


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
class MovedCap:
    """A cluster's frequency cap that is no longer what it was when the cell began."""

    policy: str
    start_khz: float
    now_khz: float


@dataclass(frozen=True)
class LiveReadings:
    """The device and the engine's memory as they were about a second ago; None: not known.

    `cpu_temp_c`: the hottest sensor of the CPU that has moved since the cell began;
    `anon_peak_bytes`: the largest sample that was seen on the way, at most the cell's true peak.
    """

    cpu_temp_c: float | None = None
    moved_caps: tuple[MovedCap, ...] = ()
    anon_bytes: int | None = None
    anon_peak_bytes: int | None = None


@dataclass(frozen=True)
class CellProgress:
    """At most once a second: tokens out so far, and tokens per second in the last few.

    `tokens` None: there are none yet, or the cell makes none; `scored`: tokens of a text.
    """

    cell: PlannedCell
    total: int
    tokens: int | None
    n_predict: int
    tok_s: float | None
    scored: int | None = None
    readings: LiveReadings = LiveReadings()


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
