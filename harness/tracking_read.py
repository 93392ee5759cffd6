"""What of a campaign's directory is logged: the cells that all others judge and show, too.

Reads the directory, writes nothing, knows no store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import rundir
from harness.collect import sound_cells
from harness.configure import load_yaml
from harness.journal import Event, ended_as, read_journal
from harness.jsonfile import read_as
from harness.planned import Plan
from harness.records import CellRecord
from harness.verdicts import CampaignVerdict


@dataclass(frozen=True)
class Stored:
    """What lies in a campaign's directory; None or empty where it is not (yet) there.

    `records`: the sound ones; `damaged`: what is wrong with others that were finished, by index.
    `outdated`: there is a verdict, of other cells than these.
    """

    directory: Path
    config: dict[str, Any]
    environment: rundir.StoredEnvironment
    plan: Plan | None
    verdict: CampaignVerdict | None
    records: tuple[CellRecord, ...] = ()
    outdated: bool = False
    damaged: dict[int, str] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    sweep: rundir.Sweep | None = None
    running: bool = False
    standing: str | None = None


def read_stored(directory: Path) -> Stored:
    """Raises HarnessError naming the file that is damaged, or without which no cell counts."""
    config, verdict = directory / rundir.CONFIG, directory / rundir.VERDICT
    sound, events = sound_cells(directory), read_journal(directory)
    current = not sound.damaged and not measuring_again(events)
    return Stored(
        directory=directory,
        config=(load_yaml(config) if config.is_file() else None) or {},
        environment=rundir.read_environment(directory),
        plan=read_as(Plan, directory / rundir.PLAN),
        verdict=read_as(CampaignVerdict, verdict) if current else None,
        outdated=verdict.is_file() and not current,
        records=tuple(sound.records.values()),
        damaged=sound.damaged,
        events=events,
        sweep=rundir.read_sweep(directory),
    )


def measuring_again(events: Sequence[Event]) -> bool:
    """Whether a verdict that lies there may be of cells that were measured again since."""
    resumed = any(e.event == "campaign_resumed" for e in events)
    return resumed and ended_as(events) != "campaign_finished"
