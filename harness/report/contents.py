"""What a report is made of: a campaign as it was read from disk. Plain data, touches nothing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.analysis.device_course import DeviceCourse
from harness.analysis.series import Series
from harness.journal import Event
from harness.planned import Plan
from harness.records import CellRecord
from harness.rundir import DEFAULT_RUNS_DIR, StoredEnvironment, Sweep
from harness.tracking_text import without_credentials, without_secrets
from harness.verdicts import CampaignVerdict
from harness.words import counted, duration


@dataclass(frozen=True)
class Contents:
    """`series`, `device`, `damaged`: by index of the cell; `damaged`: what is wrong with it.

    `config`: as stored.
    """

    directory: Path
    plan: Plan
    verdict: CampaignVerdict
    records: Sequence[CellRecord]
    series: Mapping[int, Series] = field(default_factory=dict)
    device: Mapping[int, DeviceCourse] = field(default_factory=dict)
    damaged: Mapping[int, str] = field(default_factory=dict)
    margin_pct: float = 3.0
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: StoredEnvironment = field(default_factory=lambda: StoredEnvironment({}))
    events: Sequence[Event] = ()
    sweep: Sweep | None = None

    @property
    def imported(self) -> Mapping[str, Any] | None:
        """Where the cells of an imported campaign come from; None: they were run here."""
        found = self.config.get("import")
        return found if isinstance(found, Mapping) else None

    @property
    def name(self) -> str:
        """The experiment's."""
        return str(self.config.get("name") or self.directory.name)

    def of(self, *events: str) -> list[Event]:
        """Of the journal those of these kinds."""
        return [e for e in self.events if e.event in events]


def command(contents: Contents) -> str | None:
    """The command line that repeats the campaign, as a shell takes it; None: it is not recorded.

    Without what a password in an address would be.
    """
    imported = contents.imported
    if imported is not None:
        source, kind = imported.get("source"), imported.get("kind")
        if not isinstance(source, str) or not isinstance(kind, str):
            return None
        return shlex.join(["python", "-m", "harness", "import", kind, source])
    created = contents.of("campaign_created")
    words = created[0].data.get("overrides") if created else None
    if not isinstance(words, list):
        return None
    kept = [_without_secrets(str(w)) for w in words if not str(w).startswith("resume=")]
    return shlex.join(["python", "-m", "harness", *kept])


def judge_again(contents: Contents) -> str:
    """The command line that judges the same records again."""
    words = ["python", "-m", "harness", "report", contents.directory.name]
    runs_dir = contents.directory.parent
    if runs_dir != Path(DEFAULT_RUNS_DIR):
        words += ["--runs-dir", str(runs_dir)]
    return shlex.join(words)


def _without_secrets(override: str) -> str:
    """A path to a key is none, and needed to repeat the campaign."""
    key, is_there, value = override.partition("=")
    name = key.rpartition(".")[2]
    if is_there and name != "key_file" and not without_secrets({name: value}):
        return f"{key}=***"
    return f"{key}={without_credentials(value)}" if is_there else override


def in_one_line(contents: Contents) -> list[str]:
    """What campaign it is: design, how much of it ran, where, when."""
    plan, records = contents.plan, contents.records
    said = [_DESIGNS.get(plan.design, plan.design)]
    planned = len(plan.cells)
    ran = counted(len(records), "cell")
    if len(records) == planned:
        said.append(f"all {planned} cells" if planned > 1 else "its one cell")
    else:
        said.append(f"{ran} of {planned} planned")
    targets = sorted(
        {f"{r.target.kind} {r.target.name}" for r in records if r.target.kind != "imported"}
    )
    said += targets[:1] if len(targets) == 1 else [f"{len(targets)} targets"] if targets else []
    when = _when(records)
    said += [when] if when else []
    sweep = contents.sweep
    if sweep is not None:
        said.append(f"{sweep.index + 1} of {sweep.count} of the sweep {sweep.name} ({sweep.id})")
    return said


_DESIGNS = {
    "four_cell": "four-cell session",
    "pairs": "randomised pairs",
    "abba": "blocks forth and back",
    "survey": "survey",
    "levels": "ladder of memory limits",
}


def _when(records: Sequence[CellRecord]) -> str | None:
    starts = [r.started_unix_s for r in records if r.started_unix_s is not None]
    ends = [r.ended_unix_s for r in records if r.ended_unix_s is not None]
    if not starts:
        return None
    first = datetime.fromtimestamp(min(starts), UTC)
    # times of an importer or a simulator may be of no calendar
    took = "" if not ends else f", {duration(max(ends) - min(starts))}"
    return f"{first:%Y-%m-%d %H:%M} UTC{took}"
