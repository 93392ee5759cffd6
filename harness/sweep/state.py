"""A sweep as it lies on disk, and what follows from it. Touches `runs_dir` only.

`<runs_dir>/<sweep id>/campaigns.json` is written whole after every change, so that a sweep that was
killed says how far it came: what has run is kept, what was under way is resumed, the rest is run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness import rundir
from harness.errors import DeviceError, UsageError
from harness.journal import write_json
from harness.jsonfile import read_as

# planned: not yet begun. running: under way, or the harness was killed meanwhile. ran: to its end,
# with or without cells that failed. stopped: by a device, say; can be taken up. refused: not
# started, as something it needs is wrong. interrupted: by the user. left_out: no time was left.
Status = Literal["planned", "running", "ran", "stopped", "refused", "interrupted", "left_out"]
# what a resume does not touch
SETTLED: tuple[Status, ...] = ("ran", "left_out")


@dataclass(frozen=True)
class Part:
    """One campaign of a sweep; None: not known, or not yet.

    `overrides`: its own command line; `varied`: what sets it apart. `expected_s` leaves out
    `unknown_cells`, whose like never ran; `took_s` from its beginning, over all resumes.
    """

    experiment: str
    overrides: tuple[str, ...]
    varied: tuple[str, ...]
    status: Status = "planned"
    exit_code: int | None = None
    campaign: str | None = None
    expected_s: float | None = None
    unknown_cells: int | None = None
    took_s: float | None = None
    drift: str | None = None
    headline: str | None = None
    why: str | None = None  # not run to its end


@dataclass(frozen=True)
class SweepState:
    """All of a sweep. `asked`: the command line; `budget_s`: seconds that all of it may take."""

    id: str
    name: str
    asked: tuple[str, ...]
    parts: tuple[Part, ...]
    budget_s: float | None = None

    def with_part(self, index: int, part: Part) -> SweepState:
        """A copy with one part replaced."""
        parts = [part if i == index else p for i, p in enumerate(self.parts)]
        return dataclasses.replace(self, parts=tuple(parts))

    @property
    def spent_s(self) -> float:
        """What all campaigns so far took."""
        return sum(p.took_s or 0.0 for p in self.parts)

    @property
    def unfinished(self) -> bool:
        """Whether there is anything that a resume would run."""
        return any(p.status not in SETTLED for p in self.parts)

    @property
    def exit_code(self) -> int:
        """0: all ran as they should; 1: some did not; 2: none was even started."""
        begun = [p for p in self.parts if p.status != "left_out"]
        if all(p.status == "refused" for p in begun):
            return 2
        return int(any(p.status != "ran" or p.exit_code for p in begun))


def left_out(part: Part, left_s: float) -> bool:
    """Whether a campaign is expected to take longer than there is left.

    Cells whose like never ran count for nothing: without a first time there is no second, and what
    takes too long is known from then on. Once nothing is left, nothing begins.
    """
    return left_s <= 0 or (part.expected_s or 0.0) > left_s


# --- on disk -------------------------------------------------------------------------------------


def write_state(directory: Path, state: SweepState) -> None:
    """Whole or not at all. Raises DeviceError."""
    write_json(directory / rundir.SWEEP_STATE, state)


def read_state(directory: Path) -> SweepState:
    """Raises DeviceError naming the file that is damaged, or missing."""
    path = directory / rundir.SWEEP_STATE
    state = read_as(SweepState, path)
    if state is None:
        raise DeviceError(f"{path}: is missing")
    return state


def find_sweep(name: str, runs_dir: Path) -> Path | None:
    """The directory that `name` is, or the id of a sweep in `runs_dir`; None: neither."""
    with contextlib.suppress(OSError, ValueError):
        for path in (Path(name), runs_dir / name):
            if (path / rundir.SWEEP_STATE).is_file():
                return path
    return None


def known_sweeps(runs_dir: Path) -> list[str]:
    """Ids of those in `runs_dir`, oldest first."""
    return sorted(path.parent.name for path in runs_dir.glob(f"*/{rundir.SWEEP_STATE}"))


def part_of(state: SweepState, index: int) -> rundir.Sweep:
    """What its campaign's directory says of it."""
    part = state.parts[index]
    alike = [p for p in state.parts if p.experiment == part.experiment and p.status != "left_out"]
    return rundir.Sweep(state.id, state.name, index, len(state.parts), part.varied, len(alike))


@contextlib.contextmanager
def held(directory: Path) -> Iterator[None]:
    """One process at a time runs a sweep. Raises UsageError where another does."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            raise UsageError(f"{directory}: another process is running this sweep") from e
        yield
    finally:
        os.close(fd)
