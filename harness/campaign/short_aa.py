"""The doctor's A/A: a real campaign of a baseline against itself, bounded in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness import rundir
from harness.campaign.course import write_first_files
from harness.campaign.doctor_parts import Ready, Wanted, needs_of
from harness.campaign.parts import Campaign
from harness.errors import UsageError
from harness.judgement import Measured, judge, pair_settings
from harness.schema import Config
from harness.words import counted, duration

if TYPE_CHECKING:
    from harness.device.checkup import CheckUp
    from harness.device.suitability import Needs
    from harness.doctor.noise import Noise
    from harness.doctor.resolution import Resolution
    from harness.planned import PlannedCell
    from harness.records import CellRecord
    from harness.report.terminal import Terminal
    from harness.targets.target import Target

# so many are run however long they take: fewer say nothing at all
_FIRST_CELLS = 4


@dataclass
class Budget:
    """Which cells still fit: whole pairs, none that would end after `seconds`."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    _began_s: float | None = None

    def wants(self, cell: PlannedCell, records: Mapping[int, CellRecord]) -> bool:
        """Asked before each cell, in order."""
        if self._began_s is None:
            self._began_s = self.clock()
        if cell.index < _FIRST_CELLS:
            return True
        if cell.index % 2:  # the second of a pair goes with its first
            return cell.index - 1 in records
        spent = self.clock() - self._began_s
        pair = 2 * spent / max(len(records), 1)
        return spent + pair <= self.seconds


@dataclass
class ShortAA:
    """Plan and device are there; `measure`, then `noise` and `resolution` of what there is."""

    wanted: Wanted
    ready: Ready
    directory: Path
    target: Target
    check_up: CheckUp
    begun: bool = False

    @property
    def config(self) -> Config:
        """Of the campaign."""
        return self.wanted.config

    @property
    def needs(self) -> Needs:
        """As they were asked for before."""
        return needs_of(self.config, self.ready, None)

    @property
    def in_words(self) -> str:
        """What is about to happen."""
        tokens = next(iter(self.ready.plan.arms.values())).n_predict
        longest = duration(60 * self.wanted.asked.minutes)
        return (
            f"the baseline against itself, at most {counted(len(self.ready.plan.cells), 'cell')} "
            f"of {counted(tokens, 'token')} and {longest}"
        )

    def measure(self, view: Terminal) -> None:
        """Raises as a session does; what was finished is on disk in every case."""
        from harness.device.launcher import Sampling
        from harness.device.readiness import Readiness
        from harness.device.suitability import findings
        from harness.journal import Journal, write_json
        from harness.measuring import ModelFiles
        from harness.session import run_session
        from harness.stopping import StopFlag

        ready, config, stop = self.ready, self.config, StopFlag()
        deployed = ready.deployed
        campaign = Campaign(
            directory=self.directory,
            config=config,
            data=self.wanted.data,
            plan=ready.plan,
            target=self.target,
            deployed=deployed,
            model=ready.model,
            overrides=self.wanted.overrides,
        )
        rundir.make_campaign_dir(self.directory.parent, self.directory.name)
        local = self.target.id.kind == "local"
        place = self.directory if local else self.target.work_dir(self.directory)
        with rundir.disk_errors(self.directory):
            inspection = self.check_up.inspection
            found = findings(inspection, self.needs)
            readiness = Readiness(found, place, inspection.work.page_bytes)
            write_first_files(campaign, readiness)
            self.target.heed(stop.nap)
            with stop.on_signals(), Journal.open(self.directory) as journal:
                self.begun = True
                run_session(
                    ready.plan,
                    target=self.target,
                    build=deployed.build,
                    given=deployed.given,
                    model=ModelFiles(deployed.model, deployed.model_files, ready.model.sha256),
                    journal=journal,
                    on_event=view.event,
                    sampling=Sampling(probe_s=config.schedule.probe_s),
                    evict_page_cache=config.schedule.drop_page_cache,
                    wants=Budget(60 * self.wanted.asked.minutes).wants,
                    inputs=deployed.inputs,
                    gate=config.schedule.gate,
                    limits=config.session,
                    stop=stop,
                )
            measured = Measured.read(self.directory)
            verdict = judge(measured, measured.records())
            write_json(self.directory / rundir.VERDICT, verdict)

    def noise(self) -> Noise:
        """Of all cells that were finished."""
        from harness.analysis.device_noise import device_of
        from harness.doctor.noise import noise_of

        measured = Measured.read(self.directory)
        records = measured.records()
        series = measured.series(records)
        try:
            device = device_of(records, series)
        except ValueError:  # too few
            device = None
        return noise_of(records, series, measured.settings, device)

    def resolution(self, noise: Noise, seconds: float, view: Terminal) -> Resolution | None:
        """Simulates for so long; with the pauses of a campaign, not those of this A/A."""
        from harness.configure import compose
        from harness.doctor.resolution import resolve
        from harness.power.source import read_source

        measured = Measured.read(self.directory)
        settings = pair_settings(measured.settings, interim=False)
        device = None
        try:
            source = read_source(str(self.directory), self.directory.parent)
            device, settings = source.device, source.settings
        except UsageError:  # too few cells
            pass
        spacing_s = float(
            compose(["+experiment=sequential_pairs", *_schedule(self.wanted.asked.overrides)])[
                "schedule"
            ]["spacing_s"]
        )
        said: list[bool] = []

        def progress(done: int, total: int) -> None:
            del done, total
            if not said:
                said.append(True)
                view.say("simulating campaigns on this noise")

        return resolve(
            noise, device, settings, spacing_s=spacing_s, seconds=seconds, progress=progress
        )


def _schedule(overrides: tuple[str, ...]) -> list[str]:
    return [word for word in overrides if word.lstrip("+").startswith("schedule")]
