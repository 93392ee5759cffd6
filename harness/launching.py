"""One launcher from its start to its end on a target, watched. Waits for nothing else."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

from harness.collect import DEVICE
from harness.device.launcher import LOG, Sampling, launcher_argv
from harness.device.live import SAMPLES, SAMPLES_TAIL_BYTES
from harness.device.sentinel import TAIL_BYTES, LiveSentinel
from harness.engines import native
from harness.errors import DeviceError
from harness.events import CellExcursion, CellStarted, SessionEvent
from harness.planned import Arm, PlannedCell
from harness.readings import Excursion
from harness.report.device_words import excursion_in_words
from harness.session_config import SessionConfig
from harness.stopping import StopFlag
from harness.targets.target import CellLost, Running, Target
from harness.watching import EverySecond, Progress

# The launcher gives the engine 2 s after SIGTERM before it kills it, and then writes its result.
ENDING_S = 15.0
# Beyond the cell's own time limit: probes, self-test and loading a result onto a slow disk.
OVERTIME_S = 60.0
POLL_S = 0.05
TELEMETRY_TAIL_BYTES = 8192


class Throttled(CellLost):
    """The cell went beyond what `session` allows; it was measured, but is to be run again."""


class ThrottledToStop(DeviceError):  # noqa: N818 - says what happened, as its base does
    """The same, where the campaign is to end there."""


@dataclass(frozen=True)
class Launching:
    """What all cells of a session have in common. `probe_file`, `lock`: on the target."""

    target: Target
    launcher: PurePath
    probe_file: PurePath
    lock: PurePath
    total: int  # cells in the plan
    sampling: Sampling
    limits: SessionConfig
    on_event: Callable[[SessionEvent], None]
    stop: StopFlag
    clock: Callable[[], float]
    sleep: Callable[[float], None]

    def run(
        self, cell: PlannedCell, arm: Arm, argv: list[str], work_dir: PurePath, *, last: bool
    ) -> int:
        """Run the launcher with the engine's `argv` to its end; its exit code.

        Never leaves it running. Raises CellLost where the cell is to be run again, DeviceError,
        Interrupted; and what `heed` does, about a second after there is reason to.
        """
        command = launcher_argv(
            self.launcher,
            work_dir,
            argv,
            sampling=self.sampling,
            probe_file=self.probe_file,
            data_limit_bytes=arm.data_limit_bytes,
            cgroup_limit_bytes=arm.cgroup_limit_bytes,
            cgroup_mode=arm.cgroup_mode,
            time_limit_s=arm.time_limit_s,
        )
        telemetry, device = work_dir / native.TELEMETRY, work_dir / DEVICE
        tails: dict[PurePath, int] = {
            telemetry: TELEMETRY_TAIL_BYTES,
            device: TAIL_BYTES,
            (samples := work_dir / SAMPLES): SAMPLES_TAIL_BYTES,
        }

        def tail(path: PurePath) -> Callable[[], bytes]:
            return lambda: self.target.tail(path, tails[path])

        running = self.target.run(
            command,
            log=work_dir / LOG,
            lock=self.lock,
            tails=tails,
        )
        progress = Progress(
            cell,
            self.total,
            arm.n_predict,
            telemetry=tail(telemetry),
            device=tail(device),
            samples=tail(samples),
            on_event=self.on_event,
            clock=self.clock,
        )
        sentinel = LiveSentinel(self.target, device, self.limits)
        watch = EverySecond(
            self.clock, lambda: self._tell_and_heed(cell, sentinel.look(), last), progress.look
        )
        try:
            self.on_event(CellStarted(cell, self.total))
            deadline = self.clock() + arm.time_limit_s + OVERTIME_S
            while running.poll() is None and self.clock() < deadline:
                self.stop.heed()
                watch.look()
                self.sleep(POLL_S)
        finally:
            code = self._end(running)
        return code

    def _tell_and_heed(self, cell: PlannedCell, found: tuple[Excursion, ...], last: bool) -> None:
        for excursion in found:
            self.on_event(CellExcursion(cell, self.total, excursion))
        self.heed(cell, found, last=last)

    def heed(self, cell: PlannedCell, found: tuple[Excursion, ...], *, last: bool) -> None:
        """Raises Throttled or ThrottledToStop where `session.on_throttle` asks for that.

        Not Throttled in the `last` attempt at a cell.
        """
        if not found or self.limits.on_throttle == "mark":
            return
        words = f"throttled: {excursion_in_words(found[0])}"
        if self.limits.on_throttle == "stop":
            raise ThrottledToStop(
                f"cell {cell.name} does not count, {words} (session.on_throttle=stop); "
                "what was measured before is kept, and a resume goes on with this cell"
            )
        if not last:
            raise Throttled(words)

    def _end(self, running: Running) -> int:
        """Make sure that the launcher has ended, in good order if it can; its exit code."""
        if running.poll() is None:
            running.terminate()
        began = time.monotonic()
        while (code := running.poll()) is None:
            with contextlib.suppress(KeyboardInterrupt):  # it is ending already
                if time.monotonic() > began + 2 * ENDING_S:
                    raise DeviceError(
                        f"{self.target.id.name}: the launcher there cannot be ended; end what "
                        f"holds {self.lock} and resume"
                    )
                if time.monotonic() > began + ENDING_S:
                    running.kill()
                time.sleep(POLL_S)
        return code
