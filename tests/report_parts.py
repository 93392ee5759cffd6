"""Whole campaigns on disk that were never run, for tests of reports: simulated devices."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness import rundir
from harness.analysis.series import Series
from harness.analysis.simulate import simulate
from harness.importers.measures import Row
from harness.importers.write import Imported, ImportedCell, write_campaign
from harness.journal import JOURNAL
from harness.planned import Plan
from harness.records import CellRecord

_SERIES = ("wall_ms", "io_ms", "compute_ms", "stall_ms", "read_bytes", "hits", "requests", "majflt")


@dataclass
class MadeUp:
    """A campaign before it is written. What is changed here is found on disk."""

    plan: Plan
    records: list[CellRecord]
    series: Mapping[int, Series]
    name: str = "made_up"
    overrides: Sequence[str] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    device: bool = True  # what launchers sample while a cell runs

    def write(self, runs_dir: Path) -> Path:
        """Its directory, as a campaign of our own leaves it."""
        files = runs_dir.parent / "device-samples"
        files.mkdir(parents=True, exist_ok=True)
        cells = []
        for record in self.records:
            own = self.series.get(record.index)
            sampled = {}
            if self.device and own is not None:
                sampled = {"device.csv": _device_csv(files / f"{record.index}.csv", record, own)}
            cells.append(ImportedCell(record, () if own is None else _rows(own), sampled))
        imported = Imported(self.name, self.plan, tuple(cells), {"kind": "made up"})
        directory = write_campaign(imported, runs_dir)
        (directory / rundir.CONFIG).write_text(f"name: {self.name}\n")
        environment = json.loads((directory / rundir.ENVIRONMENT).read_text())
        (directory / rundir.ENVIRONMENT).write_text(json.dumps(environment | self.environment))
        _asked_for_by(directory / JOURNAL, self.overrides)
        return directory


def throttled_pairs(
    *, candidates: Sequence[str] = ("spec2",), pairs: int = 8, tokens: int = 96, seed: int = 4
) -> MadeUp:
    """A phone that throttles through a campaign of pairs, in which every candidate is slower."""
    plan, records, series = simulate(
        "day40",
        seed=seed,
        effect_pct=-8.0,
        effect_on="bytes",
        pairs=pairs,
        tokens=tokens,
        baseline="baseline",
        candidates=candidates,
    )
    return MadeUp(
        plan, records, series, "throttled", ("+experiment=sequential_pairs", "cell.n_predict=96")
    )


def throttled_four_cells(*, tokens: int = 128, seed: int = 3) -> MadeUp:
    """The same device under a session of four cells."""
    plan, records, series = simulate(
        "day40",
        seed=seed,
        effect_pct=[0.0, -8.0],
        tokens=tokens,
        design="four_cell",
        baseline="baseline",
        candidates=("retention", "spec2"),
    )
    return MadeUp(plan, records, series, "four", ("+experiment=matched_pair",))


def changed(made: MadeUp, index: int, **changes: Any) -> None:
    """Another record in the place of one."""
    made.records = [
        dataclasses.replace(r, **changes) if r.index == index else r for r in made.records
    ]


def _rows(series: Series) -> tuple[Row, ...]:
    columns = {n: a for n in _SERIES if (a := getattr(series, n)) is not None}
    return tuple(
        {"token": float(i)} | {n: float(a[i]) for n, a in columns.items()}
        for i in range(len(series))
    )


def _device_csv(path: Path, record: CellRecord, series: Series) -> Path:
    """Between its entry and its exit: samples of 250 ms, of which a few are enough here."""
    lasted_ms = float(np.sum(series.wall_ms))
    caps = [s.cpufreq[0].scaling_max_khz for s in (record.entry, record.exit) if s]
    temps = [s.thermal[0].temp_c or 0.0 for s in (record.entry, record.exit) if s]
    rows = ["t_ms,mem_available_bytes,policy0.max_khz,thermal_zone0.cpu.temp_c"]
    for share in np.linspace(0, 1, 40):
        cap = caps[int(share > 0.6)]
        temp = temps[0] + (temps[1] - temps[0]) * (1 - np.exp(-4 * share))
        memory = record.entry.mem_available_bytes if record.entry else None
        rows.append(f"{share * lasted_ms:.1f},{memory},{cap},{temp:.1f}")
    path.write_text("\n".join(rows) + "\n")
    return path


def _asked_for_by(journal: Path, overrides: Sequence[str]) -> None:
    """The first event becomes that of a campaign that was run here."""
    first, *rest = journal.read_text().splitlines()
    event = {"seq": 0, "unix_s": json.loads(first)["unix_s"], "event": "campaign_created"}
    lines = [json.dumps(event | {"overrides": list(overrides)}), *rest]
    journal.write_text("".join(f"{line}\n" for line in lines))
