"""One cell, from the pause before it to its record on disk. The only place that waits.

Touches the campaign directory through the journal and the device through the target; knows neither
which cell comes next nor what will be concluded from it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from harness.build.types import EngineBuild, EngineFile
from harness.collect import collect_cell
from harness.device.android_state import filled, is_phone
from harness.device.gates import await_gates, missed, outcome_in_words
from harness.device.launcher import (
    EXIT_RESULT_NOT_WRITTEN,
    ORPHAN_S,
    Sampling,
    last_word,
    read_result,
    read_state,
)
from harness.engines.native_argv import engine_argv, placed_arm
from harness.errors import DeviceError
from harness.events import AtGate, CellFinished, CellRepeated, GatePassed, SessionEvent, Waiting
from harness.journal import Journal, write_atomically
from harness.jsonable import to_json
from harness.launching import ENDING_S, Launching, Throttled, ThrottledToStop
from harness.planned import Arm, Plan, PlannedCell
from harness.readings import DeviceState, GateOutcome
from harness.records import CellRecord, Wait
from harness.session_config import GateConfig, SessionConfig
from harness.stopping import StopFlag
from harness.targets.target import CELL_LOCK, CellLost, Target
from harness.words import counted

PROMPT = "prompt.txt"

STOP_POLL_S = 0.2
# The launcher reserves 256 KiB for its result; the samples of one minute take as much again.
MIN_FREE_BYTES = 512 * 1024


@dataclass(frozen=True)
class ModelFiles:
    """The model as it lies on the target: the file to name, all its shards, the hash over them."""

    path: Path
    files: tuple[Path, ...]
    sha256: str | None


@dataclass(frozen=True)
class EarlierCell:
    """One that was measured on the device just before, by another campaign: the first cell waits.

    `ended` on the clock of the session.
    """

    ended: float
    spacing_s: float


@dataclass
class Measuring:
    """What all cells of a session have in common, and what of one matters to the next.

    For the fields see `session.run_session`. `under_way`: the cell that is being measured.
    """

    plan: Plan
    target: Target
    build: EngineBuild
    model: ModelFiles
    journal: Journal
    on_event: Callable[[SessionEvent], None]
    sampling: Sampling
    evict_page_cache: bool
    inputs: Mapping[str, str]
    given: Mapping[str, EngineFile]
    gate: GateConfig
    limits: SessionConfig
    stop: StopFlag
    earlier: EarlierCell | None
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    under_way: PlannedCell | None = None
    seen: list[DeviceState] = field(default_factory=list)  # of the cells so far
    last_end: float | None = None  # of the cell before, on the monotonic clock

    def check_arms(self) -> None:
        """Raises UsageError where the settings of an arm cannot act."""
        for arm in self.plan.arms.values():
            self._engine_argv(arm, Path())

    def identity(self) -> dict[str, object]:
        """What cells of one campaign must have in common, whichever session measures them."""
        return {
            "engine_build_id": self.build.build_id,
            "model_sha256": self.model.sha256,
            "target": to_json(self.target.id),
            "device": self.target.device_key(),
            # of a built one its id says all; another compiler's same sources may give other bytes
            "engine_sha256": self.build.sha256 if self.build.source == "given" else None,
            **{
                f"cells.{arm.cell}.binary": self._engine_of(arm).build_id
                for arm in self.plan.arms.values()
                if arm.binary is not None
            },
        }

    def measure(self, cell: PlannedCell, *, resumed: bool) -> CellRecord:
        """The cell's record. One that was lost is run again; one that throttled, if asked for.

        `resumed`: cells of the campaign ran before this session.
        """
        for repeats in itertools.count():
            try:
                return self._attempt(cell, resumed, last=repeats >= self.limits.max_repeats)
            except CellLost as e:
                self.last_end = self.clock()
                reason = str(e)
                self.journal.append(
                    "cell_repeated", index=cell.index, cell=cell.name, reason=reason
                )
                if repeats >= self.limits.max_repeats:
                    raise DeviceError(
                        f"cell {cell.name} was lost {counted(repeats + 1, 'time')} ({reason}); "
                        "what was measured before is kept"
                    ) from e
                self.on_event(CellRepeated(cell, len(self.plan.cells), reason))
        raise AssertionError("unreachable")

    def _attempt(self, cell: PlannedCell, resumed: bool, last: bool) -> CellRecord:
        """From the pause before the cell to its record on disk. Raises CellLost.

        `last`: it counts also when it throttles, as it will not be run again.
        """
        self.under_way = cell
        began = self._end_of_last(resumed)
        self._await_end_of_others()
        reason = self._pause(cell, began, resumed)
        gates = self._await_gates(cell)
        cell_dir = self.journal.make_cell_dir(_dir_name(cell))
        work_dir = self.target.work_dir(cell_dir)
        arm = self.plan.arms[cell.arm]
        prompt = cell_dir / PROMPT
        self.target.clear(work_dir)
        self._prepare(cell, arm, prompt, work_dir)
        argv = self._engine_argv(arm, work_dir)
        entry = self._seen_by_services()
        wait = Wait(self.clock() - began, reason, gates)
        try:
            code = self._launching.run(cell, arm, argv, work_dir, last=last)
        except (Throttled, ThrottledToStop):
            # why it was ended stays to be seen, beside the attempt that counts
            self.target.get(work_dir, cell_dir)
            raise
        self.last_end = self.clock()
        leaving = self._seen_by_services()
        self.target.get(work_dir, cell_dir)
        self._check_it_is_known(cell_dir, code)
        self.target.vouch()
        if code == EXIT_RESULT_NOT_WRITTEN:
            self._check_space()
            raise DeviceError(f"cell {cell.name} could not be kept: {last_word(cell_dir)}")
        record = collect_cell(
            cell_dir,
            cell,
            placed_arm(arm, self.inputs),
            engine_argv=argv,
            target=self.target.id,
            model_sha256=self.model.sha256,
            wait=wait,
            limits=self.limits,
            engine=self._engine_of(arm),
        )
        record = dataclasses.replace(
            record, entry=filled(record.entry, entry), exit=filled(record.exit, leaving)
        )
        # what came after the last look
        self._launching.heed(cell, record.excursions or (), last=last)
        if record.status != "ok":
            self._check_space()  # a full disk is not the arm's fault: the cell is not counted
        self.journal.write_record(cell_dir, record)
        self.seen += [state for state in (record.entry, record.exit) if state is not None]
        self.under_way = None
        self.on_event(CellFinished(cell, len(self.plan.cells), record))
        self.target.clear(work_dir)  # not before: a full disk has to show as one until then
        return record

    def _seen_by_services(self) -> DeviceState | None:
        """What a phone tells through its services alone; None of others."""
        if not is_phone(self.target):
            return None
        return read_state(self.target, self.build.launcher)

    def _end_of_last(self, resumed: bool) -> float:
        """From when on the pause counts: now, where the end of the cell before is not known."""
        if self.last_end is not None:
            return self.last_end
        # after a resume only the campaign's own last cell is the one before, of which it is not
        return self.clock() if resumed or self.earlier is None else self.earlier.ended

    def _pause(self, cell: PlannedCell, began: float, resumed: bool) -> str:
        """Wait until the spacing since `began` is over; the reason of the pause in words."""
        if self.last_end is not None:
            seconds, reason = cell.wait_s, "spacing"
        elif resumed:
            seconds = max(planned.wait_s for planned in self.plan.cells)
            reason = "spacing after a resume"
        elif self.earlier is not None:
            seconds, reason = self.earlier.spacing_s, "spacing after the campaign before"
        else:
            seconds, reason = cell.wait_s, "first cell"
        self.journal.append(
            "cell_waiting", index=cell.index, cell=cell.name, wait_s=seconds, reason=reason
        )
        while (left := began + seconds - self.clock()) > 0:
            self.on_event(Waiting(cell, len(self.plan.cells), left, reason))
            self._nap(min(left, 1.0))
        return reason

    def _await_gates(self, cell: PlannedCell) -> tuple[GateOutcome, ...]:
        """Wait for what `gate` asks for; DeviceError where it does not come and that is to stop."""
        total = len(self.plan.cells)
        outcomes = await_gates(
            lambda: read_state(self.target, self.build.launcher),
            self.gate,
            nap=self._nap,
            seen=self.seen,
            on_poll=lambda left, now: self.on_event(AtGate(cell, total, left, now)),
            clock=self.clock,
        )
        if outcomes:
            self.journal.append("cell_gated", index=cell.index, cell=cell.name, gates=outcomes)
            self.on_event(GatePassed(cell, total, outcomes))
        if self.gate.on_timeout == "stop" and (late := missed(outcomes)):
            raise DeviceError(
                f"cell {cell.name} was not started: "
                f"{'; '.join(outcome_in_words(o) for o in late)} (schedule.gate)"
            )
        return outcomes

    def _nap(self, seconds: float) -> None:
        """Sleep in slices, so that a stop is heeded at once, and the device is not lost unseen."""
        end = self.clock() + seconds
        while (left := end - self.clock()) > 0:
            self.stop.heed()
            self.target.keep()
            self.sleep(min(left, STOP_POLL_S))
        self.stop.heed()

    def _await_end_of_others(self) -> None:
        """No process of an earlier cell may live on into this one.

        A launcher whose harness was killed ends by itself; one that does not is told to.
        """
        began = self.clock()
        while self.target.is_locked(self._lock):
            if self.clock() > began + ORPHAN_S:
                self.target.end_holders(self._lock)
            if self.clock() > began + ENDING_S:
                raise DeviceError(
                    "a process of an earlier cell is still running on the target; "
                    f"end it and resume (it holds {self._lock})"
                )
            self._nap(STOP_POLL_S)

    @property
    def _launching(self) -> Launching:
        return Launching(
            target=self.target,
            launcher=self.build.launcher,
            probe_file=self.model.path,
            lock=self._lock,
            total=len(self.plan.cells),
            sampling=self.sampling,
            limits=self.limits,
            on_event=self.on_event,
            stop=self.stop,
            clock=self.clock,
            sleep=self.sleep,
        )

    @property
    def _lock(self) -> PurePath:
        return self.target.work_dir(self.journal.campaign_dir) / CELL_LOCK

    def _prepare(self, cell: PlannedCell, arm: Arm, prompt: Path, work_dir: PurePath) -> None:
        """Everything that costs time between the pause and the start of the launcher."""
        self._check_space()
        write_atomically(prompt, arm.prompt.encode())
        self.target.put(prompt, work_dir / PROMPT)
        cache = self.target.evict_page_cache(self.model.files) if self.evict_page_cache else None
        self.journal.append("cell_started", index=cell.index, cell=cell.name, page_cache=cache)

    def _check_space(self) -> None:
        there = self.target.work_dir(self.journal.campaign_dir)
        for place, free in (
            (self.journal.campaign_dir, self.journal.free_bytes()),
            (f"{self.target.id.name}: {there}", self.target.free_bytes(there)),
        ):
            if free < MIN_FREE_BYTES:
                raise DeviceError(
                    f"{place}: no space left on device ({free} bytes free); "
                    "what was finished is kept, make room and resume"
                )

    def _check_it_is_known(self, cell_dir: Path, code: int) -> None:
        result = read_result(cell_dir)
        if result is None and code < 0:
            self._check_space()
            raise CellLost(f"{self.target.id.name}: the launcher there was ended by somebody else")
        if result is not None and result.host_lost:
            raise CellLost(
                f"{self.target.id.name}: {result.status_detail or 'did not hear from us'}"
            )

    def _engine_argv(self, arm: Arm, work_dir: PurePath) -> list[str]:
        placed, engine = placed_arm(arm, self.inputs), self._engine_of(arm).engine
        return engine_argv(engine, self.model.path, work_dir / PROMPT, placed, work_dir)

    def _engine_of(self, arm: Arm) -> EngineBuild | EngineFile:
        return self.build if arm.binary is None else self.given[arm.binary.path]


def _dir_name(cell: PlannedCell) -> str:
    return f"{cell.index:02d}-{cell.name}"
