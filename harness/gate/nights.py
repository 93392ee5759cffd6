"""A campaign as the gate reads it: its cells, which of them can be trusted, where and when it ran.

Reads a campaign's directory and changes nothing in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.configure import load_yaml
from harness.errors import DeviceError, UsageError
from harness.journal import Event, read_journal
from harness.judgement import Measured, judge
from harness.planned import Plan
from harness.records import CellRecord
from harness.rundir import CONFIG
from harness.schema import VerdictConfig
from harness.verdicts import CampaignVerdict, CellVerdict

IMPORTED = "campaign_imported"
# how a campaign stands by its journal: the last of these says it
_AT_ITS_END = ("campaign_finished", IMPORTED)
_UNDER_WAY = ("campaign_resumed", "campaign_interrupted", "campaign_stopped")


@dataclass(frozen=True)
class Night:
    """One campaign. `device`: what tells it from others, None where nothing does.

    `wrong`: why none of it can be read, such as that it did not come to its end. `lost`: why a cell
    that began has no sound record, by index: it may have been the one that failed. `page_cache`:
    whether the model was evicted before each cell. `settings`: what its own verdict was read with.
    """

    id: str
    experiment: str
    started_unix_s: float | None
    device: str | None
    plan: Plan
    records: tuple[CellRecord, ...]
    verdict: CampaignVerdict
    directory: Path | None = None
    settings: VerdictConfig | None = None
    wrong: str | None = None
    lost: Mapping[int, str] = field(default_factory=dict)
    page_cache: bool | None = None

    @property
    def examined(self) -> dict[int, CellVerdict]:
        """Whether each cell's timing can be trusted, by its index."""
        return {v.index: v for v in self.verdict.cells}

    @property
    def arms(self) -> tuple[str, ...]:
        """In the order of the plan; of an import, in that of its cells."""
        return tuple(dict.fromkeys((*self.plan.arms, *(c.arm for c in self.plan.cells))))

    @property
    def builds(self) -> tuple[str, ...]:
        """Every build of the engine that ran, as far as known."""
        found = [r.identity.engine_build_id for r in self.records]
        return tuple(dict.fromkeys(b for b in found if b is not None))

    def cells_of(self, arm: str) -> list[CellRecord]:
        """Its records, sound ones only, in order."""
        return [r for r in self.records if r.arm == arm]

    def same_cells(self, other: Night) -> bool:
        """Whether both hold the same measurements: those of one place in the order, at one time."""
        own, its = (
            {r.index: (r.cell, r.started_unix_s, r.ended_unix_s) for r in n.records}
            for n in (self, other)
        )
        both = own.keys() & its.keys()
        return bool(both) and all(own[i] == its[i] and own[i][1] is not None for i in both)

    def lost_of(self, arm: str) -> list[str]:
        """Why cells of it that began are not among those, in order."""
        own = {c.index: c.name for c in self.plan.cells if c.arm == arm}
        return [f"{own[i]} is lost: {why}" for i, why in sorted(self.lost.items()) if i in own]

    def mostly_lost(self, arm: str) -> str | None:
        """That fewer than half of the cells that began are left: what is left was selected."""
        left, lost = len(self.cells_of(arm)), len(self.lost_of(arm))
        if lost <= left:
            return None
        return f"{self.id}: {lost} of the {left + lost} cells of {arm} that began are lost"


def read_night(directory: Path) -> Night:
    """Raises DeviceError naming the file of the campaign that is damaged."""
    try:
        return _read(directory)
    except UsageError as e:  # of its own files, which nobody typed
        raise DeviceError(str(e)) from e


def _read(directory: Path) -> Night:
    measured = Measured.read(directory)
    records = tuple(measured.records())
    stored = load_yaml(directory / CONFIG)
    events = read_journal(directory)
    schedule = stored.get("schedule") or {}
    return Night(
        id=directory.name,
        experiment=str(stored.get("name", "")),
        started_unix_s=_started(records, events),
        device=_device(events, records),
        plan=measured.plan,
        records=records,
        verdict=judge(measured, records),
        directory=directory,
        settings=measured.settings,
        wrong=_wrong(events, measured.damaged, records),
        lost=_lost(events, measured.damaged, {r.index for r in records}),
        page_cache=schedule.get("drop_page_cache") if isinstance(schedule, Mapping) else None,
    )


def _started(records: tuple[CellRecord, ...], events: tuple[Event, ...]) -> float | None:
    """By the cells, which an import keeps the times of; else by the journal."""
    times = [r.started_unix_s for r in records if r.started_unix_s is not None]
    return min(times) if times else (events[0].unix_s if events else None)


def _device(events: tuple[Event, ...], records: tuple[CellRecord, ...]) -> str | None:
    """By its own key; a name where it shows none; nothing of an import, which knows neither."""
    begun = next((e for e in events if e.event == "campaign_started"), None)
    if begun is not None and begun.data.get("device"):
        return str(begun.data["device"])
    target = records[0].target if records else None
    if target is None or target.kind == "imported":
        return None
    return f"{target.kind}:{target.name}"


def _wrong(
    events: tuple[Event, ...], damaged: Mapping[int, str], records: tuple[CellRecord, ...]
) -> str | None:
    stands = [e.event for e in events if e.event in (*_AT_ITS_END, *_UNDER_WAY)]
    if not stands or stands[-1] not in _AT_ITS_END:
        return "it did not come to its end; finish it with resume="
    if not records:
        first = next(iter(damaged.values()), None)
        return "no cell was measured" if first is None else f"no cell can be read: {first}"
    return None


def _lost(events: tuple[Event, ...], damaged: Mapping[int, str], sound: set[int]) -> dict[int, str]:
    """What began and left no record that can be read."""
    begun = {int(e.data["index"]) for e in events if e.event == "cell_started"}
    absent = dict.fromkeys(begun, "it began and left no record")
    return {i: why for i, why in (absent | dict(damaged)).items() if i not in sound}
