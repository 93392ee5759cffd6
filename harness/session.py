"""Runs a plan on a target: every cell that is wanted and not there yet, in order.

Touches the campaign directory through the journal; knows neither why the cells are in this order
nor what will be concluded from them. How one is measured, and what is waited for: `measuring`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.build.types import EngineBuild, EngineFile
from harness.collect import cell_dir_of
from harness.device.launcher import Sampling
from harness.errors import DeviceError, Interrupted, UsageError
from harness.events import SessionEvent
from harness.journal import Journal, altered_cells, ended_as, finished_cells, json_sha256
from harness.jsonable import to_json
from harness.measuring import EarlierCell, Measuring, ModelFiles
from harness.planned import Plan, PlannedCell
from harness.records import CellRecord
from harness.session_config import NO_GATES, USUAL_SESSION, GateConfig, SessionConfig
from harness.stopping import StopFlag
from harness.targets.target import Target

# Whether a cell is still wanted, given the records so far by index. Asked before each cell of the
# plan that has no record, in order; the same records must give the same answer, for a resume.
Wants = Callable[[PlannedCell, Mapping[int, CellRecord]], bool]


def every_cell(_cell: PlannedCell, _records: Mapping[int, CellRecord]) -> bool:
    """A plan whose cells are all run."""
    return True


def run_session(
    plan: Plan,
    *,
    target: Target,
    build: EngineBuild,
    model: ModelFiles,
    journal: Journal,
    on_event: Callable[[SessionEvent], None],
    sampling: Sampling | None = None,
    evict_page_cache: bool = True,
    stop_when_baseline_fails: bool = True,
    wants: Wants = every_cell,
    inputs: Mapping[str, str] | None = None,
    given: Mapping[str, EngineFile] | None = None,
    gate: GateConfig = NO_GATES,
    limits: SessionConfig = USUAL_SESSION,
    stop: StopFlag | None = None,
    earlier: EarlierCell | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[CellRecord]:
    """Run the cells of `plan` that the journal does not say are finished; all records, in order.

    Paths of `build` and `model` are the target's; `inputs`: where texts and routes of the arms are
    there, by their paths here; `given`: so, too, the engines of arms that do not run `build`. Cells
    that `wants` turns down are passed over: once what they would show is known. `gate`: what must
    hold before each, beside the pause; `limits`: what is watched while one runs, and how often one
    that was throttled, or lost with the device, is run again.

    The pause before a cell is measured from the end of the one before, which may have been another
    campaign's (`earlier`); the first cell after a resume waits as well. Raises UsageError (settings
    that cannot act, or a resume with another plan, engine or model), DeviceError (disk, target, or
    the opening baseline failed), Interrupted (stop flag or KeyboardInterrupt); what was finished is
    kept in every case.
    """
    measuring = Measuring(
        plan=plan,
        target=target,
        build=build,
        model=model,
        journal=journal,
        on_event=on_event,
        sampling=sampling or Sampling(),
        evict_page_cache=evict_page_cache,
        inputs=inputs or {},
        given=given or {},
        gate=gate,
        limits=limits,
        stop=stop or StopFlag(),
        earlier=earlier,
        clock=clock,
        sleep=sleep,
    )
    return _Session(plan, journal, measuring, wants, stop_when_baseline_fails).run()


@dataclass(frozen=True)
class _Session:
    plan: Plan
    journal: Journal
    measuring: Measuring
    wants: Wants
    stop_when_baseline_fails: bool

    def run(self) -> list[CellRecord]:
        """See `run_session`."""
        self.measuring.check_arms()
        records, resumed = self._begin()
        try:
            for cell in self.plan.cells:
                if cell.index not in records and self.wants(cell, records):
                    records[cell.index] = self.measuring.measure(cell, resumed=resumed)
                    self._check_opening(cell, records[cell.index])
        except (KeyboardInterrupt, Interrupted) as e:
            raise self._interrupted(str(e) or "SIGINT", len(records)) from e
        except DeviceError as e:
            self._note("campaign_stopped", reason=str(e))
            raise
        if ended_as(self.journal.events) != "campaign_finished":  # else there was nothing to do
            self.journal.append("campaign_finished", cells=len(records))
        return [records[index] for index in sorted(records)]

    # --- beginning and ending ---

    def _begin(self) -> tuple[dict[int, CellRecord], bool]:
        """Journal the start or the resume; sound records so far, and whether any cell ever ran."""
        identity = {"plan_sha256": json_sha256(to_json(self.plan)), **self.measuring.identity()}
        events = list(self.journal.events)
        started = [e for e in events if e.event == "campaign_started"]
        if not started:
            self.journal.append("campaign_started", pid=os.getpid(), **identity)
            return {}, False
        before = started[0].data  # of an older version it may lack the last
        changed = [key for key, value in identity.items() if before.get(key, value) != value]
        if changed:
            raise UsageError(
                f"{self.journal.campaign_dir}: cannot be resumed, as {', '.join(changed)} differ "
                "from what it was started with; start a new campaign"
            )
        found = finished_cells(self.journal.campaign_dir, events)
        for index, wrong in altered_cells(self.journal.campaign_dir, events).items():
            if found.records.pop(index, None) is not None:
                found.damaged[index] = wrong
        opening = self.plan.cells[0]
        if opening.index in found.records and self._failed_opening(
            opening, found.records[opening.index]
        ):
            found.damaged[opening.index] = f"was {found.records.pop(opening.index).status}"
        if found.damaged or ended_as(events) != "campaign_finished":
            self.journal.append(
                "campaign_resumed",
                pid=os.getpid(),
                finished=sorted(found.records),
                again={str(index): why for index, why in found.damaged.items()},
            )
        return found.records, any(e.event == "cell_started" for e in events)

    def _check_opening(self, cell: PlannedCell, record: CellRecord) -> None:
        if self._failed_opening(cell, record):
            raise DeviceError(
                f"the opening baseline {record.status}: {record.status_detail}; its files are in "
                f"{cell_dir_of(self.journal.campaign_dir, record)}"
            )

    def _failed_opening(self, cell: PlannedCell, record: CellRecord) -> bool:
        return (
            self.stop_when_baseline_fails
            and cell is self.plan.cells[0]
            and cell.role == "baseline"
            and record.status != "ok"
        )

    def _interrupted(self, reason: str, finished: int) -> Interrupted:
        under_way = self.measuring.under_way
        index = None if under_way is None else under_way.index
        self._note("campaign_interrupted", reason=reason, index=index)
        return Interrupted(
            f"interrupted ({reason}) with {finished} of {len(self.plan.cells)} cells finished; "
            f"go on with resume={self.journal.campaign_dir.name}"
        )

    def _note(self, event: str, **data: object) -> None:
        """Journal why the campaign ends, if the disk still takes it: no news worth an error."""
        with contextlib.suppress(DeviceError):
            self.journal.append(event, **data)
