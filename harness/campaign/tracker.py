"""Logs a campaign to MLflow while it runs: after each cell, in the pause before the next one.

Is told what the session tells. It waits for the process that logs, so that nothing of it runs while
a cell is measured, but never for long: a store that is away costs seconds and one line, and what it
did not take is logged at the next cell, at the end, or by `python -m harness track`.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.analysis.standing import Standing, standing_in_words
from harness.campaign.parts import Campaign
from harness.campaign.sinks import first_line
from harness.events import CellFinished, SessionEvent
from harness.rundir import DEFAULT_RUNS_DIR
from harness.stopping import StopFlag
from harness.tracking_process import LoggingProcess
from harness.tracking_store import track_command
from harness.tracking_text import without_credentials
from harness.tracking_worker import Request

if TYPE_CHECKING:
    from harness.report.terminal import Terminal

T = TypeVar("T")

# Before the first cell: MLflow is imported, and a new store makes its tables.
FIRST_S = 60.0
# A pause is at most so much longer for logging, whatever the store does; of a longer one, which is
# spent anyway, a part.
CELL_S = 5.0
PART_OF_PAUSE, MOST_OF_PAUSE_S = 0.5, 30.0
# Of that: when no other cell is begun any more, and when a request is given up.
BEGIN_SHARE, REQUEST_SHARE = 0.6, 0.4
# At the end a store may be slow, but not silent.
LAST_S, LAST_PER_CELL_S, SILENT_S, LAST_REQUEST_S = 60.0, 2.0, 30.0, 20
# A store that had to be given up so often is not asked again before the end: each time costs the
# whole of the time above, and an import.
MOST_KILLED = 3


class Tracker:
    """One campaign and its store. Nothing that goes wrong there comes out of here."""

    def __init__(self, campaign: Campaign, view: Terminal) -> None:
        """Starts nothing, and stays idle where tracking is turned off."""
        self._campaign = campaign
        self._view = view
        self._enabled = campaign.config.tracking.enabled
        self._uri = campaign.config.tracking.uri
        self._process = LoggingProcess()
        self._stop = StopFlag()
        self._standing: str | None = None
        self._told = False  # that the store is away
        self._away = False
        self._killed = 0
        self._until = 0.0  # on the monotonic clock: the time after a cell is over

    def close(self) -> None:
        """End the process that logs."""
        self._process.close()

    def start(self, stop: StopFlag) -> None:
        """Before the first cell: the campaign's run is there, and says that it runs."""
        self._stop = stop
        self._log(FIRST_S)

    def event(self, event: SessionEvent) -> None:
        """Log the cell that has just finished."""
        if isinstance(event, CellFinished):
            seconds = self._after(event.cell.index)
            self._until = time.monotonic() + seconds
            self._log(seconds)

    def standings(self, standings: Sequence[Standing]) -> None:
        """What can be said so far. It takes what is left of the time after a cell."""
        self._standing = "; ".join(standing_in_words(s) for s in standings)
        left = self._until - time.monotonic()
        if not self._away and left > 1:
            self._log(left)

    def finish_early(self) -> None:
        """The campaign ended before its end. The user waits: another Ctrl-C ends this too."""
        if self._enabled:
            self._view.say("logging what was measured to MLflow (Ctrl-C skips it)")
            self.finish()

    def finish(self) -> None:
        """The campaign has ended: log all of it, and say where, or how it is done later."""
        if not self._enabled:
            return
        seconds = LAST_S + LAST_PER_CELL_S * len(self._campaign.plan.cells)
        try:
            answer = self._process.ask(
                self._request(seconds, LAST_REQUEST_S, running=False),
                at_most_s=seconds,
                silent_s=SILENT_S,
            )
            wrong = None if answer is not None and answer.in_time else "the store is too slow"
        except Exception as e:  # the campaign is on disk; nothing may undo that
            wrong = first_line(e)
        except KeyboardInterrupt:
            self._process.kill()
            wrong = "skipped"
        if wrong is None:
            self._view.say(self._where())
        else:
            later = track_command(self._campaign.directory)
            self._view.say(f"warning: not logged to MLflow: {wrong}; later: {later}", "yellow")

    def _log(self, seconds: float) -> None:
        if not self._enabled or self._killed >= MOST_KILLED:
            return
        request_s = max(1, int(min(seconds * REQUEST_SHARE, LAST_REQUEST_S)))
        try:
            self._process.ask(
                self._request(seconds * BEGIN_SHARE, request_s, running=True),
                at_most_s=seconds,
                is_over=lambda: self._stop.reason is not None,
            )
            self._away = False
        except Exception as e:
            self._away = True
            self._killed += self._process.pid is None
            if not self._told:
                self._told = True
                self._view.say(
                    f"warning: {first_line(e)}; the campaign goes on, to be logged later",
                    "yellow",
                )

    def _request(self, seconds: float, request_s: int, *, running: bool) -> Request:
        directory = self._campaign.directory.resolve()
        return Request(
            directory=str(directory),
            uri=self._uri,
            runs_dir=str(directory.parent),
            experiment=self._campaign.config.name,
            seconds=seconds,
            request_s=request_s,
            running=running,
            standing=self._standing,
        )

    def _after(self, index: int) -> float:
        """Seconds for logging after the cell `index`."""
        cells = self._campaign.plan.cells
        pause = cells[index + 1].wait_s if index + 1 < len(cells) else 0.0
        return max(CELL_S, min(PART_OF_PAUSE * pause, MOST_OF_PAUSE_S))

    def _where(self) -> str:
        if self._uri is not None:
            return f"logged to {without_credentials(self._uri)}"
        runs_dir = self._campaign.directory.parent
        words = ["python", "-m", "harness", "ui"]
        if runs_dir != Path(DEFAULT_RUNS_DIR):
            words += ["--runs-dir", str(runs_dir)]
        return f"compare runs: {shlex.join(words)}"


def both(first: Callable[[T], None], second: Callable[[T], None]) -> Callable[[T], None]:
    """One who is told, for two."""

    def tell(what: T) -> None:
        first(what)
        second(what)

    return tell
