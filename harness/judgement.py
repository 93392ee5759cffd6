"""From a campaign's directory to its verdict, by the design of its plan. Reads only.

Nothing but what lies on disk is used, so a verdict can be had again without the device, by a run
that has just ended, by `report`, and for what was imported, and is the same each time.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import rundir
from harness.collect import cell_dir_of, read_device, read_output, read_series, sound_cells
from harness.configure import conf_dir, load_yaml
from harness.errors import UsageError
from harness.journal import JOURNAL, json_sha256, read_journal
from harness.jsonable import from_json
from harness.planned import Plan
from harness.records import CellRecord
from harness.schema import BLOCK_DESIGNS, COMPARING, VerdictConfig
from harness.typed import from_mapping, say
from harness.validation import MIN_TOKENS_OF_PAIRS

if TYPE_CHECKING:
    from harness.analysis.contamination import ContaminationSettings
    from harness.analysis.device_course import DeviceCourse
    from harness.analysis.four_cell import FourCellSettings
    from harness.analysis.outputs import Output
    from harness.analysis.pairs import PairSettings
    from harness.analysis.series import Series
    from harness.verdicts import CampaignVerdict

# the journal's first event: which command line asked for the campaign
CREATED = "campaign_created"


@dataclass
class Measured:
    """A campaign as it lies on disk; what is large is read when asked for, and kept."""

    directory: Path
    plan: Plan
    settings: VerdictConfig
    damaged: dict[int, str] = field(default_factory=dict)  # what is wrong, by cell index
    _series: dict[int, Series | None] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> Measured:
        """Raises UsageError naming the file that is absent or cannot be read."""
        stored = load_yaml(directory / rundir.CONFIG)
        return cls(directory, stored_plan(directory), _verdict_settings(directory, stored))

    def records(self) -> list[CellRecord]:
        """The sound records so far, in order; those that are not are in `damaged`.

        Raises UsageError (no journal) and DeviceError (it is damaged).
        """
        found = sound_cells(self.directory)
        self.damaged = found.damaged
        self._series |= found.series
        return list(found.records.values())

    def series(self, records: Sequence[CellRecord]) -> dict[int, Series]:
        """What every token took, by cell index, of those cells that recorded it."""
        for r in records:
            if r.index not in self._series:
                self._series[r.index] = read_series(self.cell_dir(r))
        return {r.index: s for r in records if (s := self._series[r.index]) is not None}

    def device_courses(self, records: Sequence[CellRecord]) -> dict[int, DeviceCourse]:
        """What the device did inside each cell, by its index, where that was sampled."""
        read = {r.index: read_device(self.cell_dir(r)) for r in records}
        return {index: course for index, course in read.items() if course is not None}

    def outputs(self, records: Sequence[CellRecord]) -> dict[int, Output]:
        """What every cell generated, by its index, where it is whole."""
        read = {r.index: read_output(self.cell_dir(r), r) for r in records}
        return {index: output for index, output in read.items() if output is not None}

    def cell_dir(self, record: CellRecord) -> Path:
        """Where a cell's files are."""
        return cell_dir_of(self.directory, record)


def judge_directory(directory: Path) -> CampaignVerdict:
    """The verdict of the campaign that lies in `directory`."""
    measured = Measured.read(directory)
    return judge(measured, measured.records())


def judge(measured: Measured, records: Sequence[CellRecord]) -> CampaignVerdict:
    """The verdict of `records`, which may be fewer than the plan has."""
    from harness.analysis.attribution import with_attribution
    from harness.analysis.builds import with_builds
    from harness.analysis.contamination import examine
    from harness.analysis.found import with_findings
    from harness.analysis.four_cell import four_cell_verdict
    from harness.analysis.pairs import pairs_verdict
    from harness.analysis.survey import survey_verdict

    plan, name = measured.plan, measured.directory.name
    series = measured.series(records)
    if plan.design in BLOCK_DESIGNS:
        verdict = pairs_verdict(name, plan, records, series, pair_settings(measured.settings))
        verdict = with_builds(verdict, plan, records, measured.outputs)
        return with_attribution(verdict, records, series)
    contamination = _contamination_settings(measured.settings)
    if plan.design == "survey":  # no coins and no sentinel deal with drift
        contamination = dataclasses.replace(contamination, slow_cell_one_side_counts=True)
    cells = examine(records, series, contamination)
    if plan.design in ("survey", "levels"):
        words = "a survey" if plan.design == "survey" else "a ladder of memory limits"
        verdict = with_findings(survey_verdict(name, words), records, measured.outputs(records))
        return dataclasses.replace(verdict, cells=cells)
    walls = {index: s.wall_ms.tolist() for index, s in series.items()}
    if plan.design != "four_cell":
        raise UsageError(
            f"{measured.directory / rundir.PLAN}: design: found {say(plan.design)}; "
            f"needs one of {', '.join((*COMPARING, 'survey', 'levels'))}"
        )
    verdict = four_cell_verdict(name, records, _four_cell_settings(measured), walls, cells)
    verdict = with_builds(verdict, plan, records, measured.outputs)
    return with_attribution(dataclasses.replace(verdict, cells=cells), records, series)


def pair_settings(config: VerdictConfig, *, interim: bool = True) -> PairSettings:
    """`interim`: also estimate between the looks."""
    from harness.analysis.drift import DriftSettings
    from harness.analysis.pairs import PairSettings

    return PairSettings(
        margin_pct=config.margin_pct,
        drift=DriftSettings(stable_pct=config.stable_pct),
        contamination=_contamination_settings(config),
        interim=interim,
    )


def _contamination_settings(config: VerdictConfig) -> ContaminationSettings:
    from harness.analysis.contamination import ContaminationSettings

    own = vars(config.contaminated)
    return ContaminationSettings(**own)


def _four_cell_settings(measured: Measured) -> FourCellSettings:
    from harness.analysis.four_cell import FourCellSettings

    config = measured.settings
    return FourCellSettings(
        sentinel_stable_pct=config.stable_pct,
        cpu_temp_tolerance_c=config.temp_tolerance_c,
        probe_tolerance_pct=config.probe_tolerance_pct,
        read_probe_tolerance_pct=config.read_probe_tolerance_pct,
        final_command=final_command(measured.directory),
    )


# --- what was asked for --------------------------------------------------------------------------


def stored_plan(directory: Path) -> Plan:
    """Raises UsageError when it cannot be read."""
    path = directory / rundir.PLAN
    try:
        stored = json.loads(path.read_bytes())
        plan = from_json(Plan, stored, str(path))
    except (OSError, ValueError) as e:
        raise UsageError(f"{path}: cannot be read: {e}; restore it") from None
    if _began_with(directory) not in (None, json_sha256(stored)):
        raise UsageError(
            f"{path}: is not what the campaign was started with (journal.jsonl has its hash); "
            "restore it"
        )
    return plan


def _began_with(directory: Path) -> str | None:
    """The hash of the plan by the journal; None where it does not say."""
    if not (directory / JOURNAL).is_file():
        return None
    started = [e for e in read_journal(directory) if e.event == "campaign_started"]
    return started[0].data.get("plan_sha256") if started else None


def final_command(directory: Path) -> str | None:
    """The command line that would give a final verdict on what a quick session compared."""
    words = _overrides(directory)
    if words is None:
        return None
    kept = [w for w in words if not w.startswith(("design=", "resume=")) and not _too_short(w)]
    return shlex.join(["python", "-m", "harness", *kept, "design=pairs"])


def _too_short(override: str) -> bool:
    """What a quick session may decode, and a verdict of pairs may not: its own number will do."""
    key, _, value = override.partition("=")
    return key.endswith(".n_predict") and value.isdecimal() and int(value) < MIN_TOKENS_OF_PAIRS


def config_sha256(stored: Any) -> str:
    """Of a configuration as it is read; where it is logged to changes nothing of what is judged."""
    known = isinstance(stored, Mapping)
    return json_sha256({k: v for k, v in stored.items() if k != "tracking"} if known else stored)


def _created(directory: Path) -> dict[str, Any]:
    """What the journal's first event says; empty where there is none."""
    if not (directory / JOURNAL).is_file():
        return {}
    created = [e for e in read_journal(directory) if e.event == CREATED]
    return created[0].data if created else {}


def _overrides(directory: Path) -> list[str] | None:
    words = _created(directory).get("overrides")
    return [str(w) for w in words] if isinstance(words, list) else None


def _verdict_settings(directory: Path, stored: Any) -> VerdictConfig:
    """As stored; what an earlier version did not know, or an import does not, is the default."""
    began = _created(directory).get("config_sha256")
    if stored == {}:  # cut short: its defaults would be another campaign's
        raise UsageError(f"{directory / rundir.CONFIG}: is empty; restore it")
    if began not in (None, config_sha256(stored)):
        raise UsageError(
            f"{directory / rundir.CONFIG}: is not what the campaign was started with "
            "(journal.jsonl has its hash); restore it"
        )
    defaults = load_yaml(conf_dir() / "verdict" / "default.yaml")
    if not isinstance(stored, Mapping):
        raise UsageError(f"{directory / rundir.CONFIG}: found {say(stored)}; needs keys and values")
    own = stored.get("verdict")
    where = f"{directory / rundir.CONFIG}: verdict"
    if not isinstance(own, Mapping | None):
        raise UsageError(f"{where}: found {say(own)}; needs keys and values")
    return from_mapping(VerdictConfig, {**defaults, **(own or {})}, where)
