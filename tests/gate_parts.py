"""Campaigns of a simulated device on disk, one a day, for tests of the gate."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.analysis.scenarios import Scenario
from harness.analysis.series import Series
from harness.analysis.simulate import simulate
from harness.analysis.simulated_campaign import Design
from harness.importers.write import Imported, ImportedCell, write_campaign
from harness.records import CellRecord

PROMPT = 7  # every day decodes the same
DAY_S = 86_400.0
Change = Callable[[CellRecord], CellRecord]


def unchanged(record: CellRecord) -> CellRecord:
    return record


def night(
    runs_dir: Path,
    day: int,
    *,
    faster_pct: float = 0.0,
    scenario: str | Scenario = "none",
    design: Design = "pairs",
    pairs: int | None = 8,
    build: str = "b0",
    name: str = "nightly",
    change: Change = unchanged,
    **own: Any,
) -> Path:
    """The directory of the campaign of one day; `own`: as `simulate` takes it."""
    plan, records, series = simulate(
        scenario,
        seed=own.pop("seed", day),
        prompt_seed=PROMPT,
        all_arms_pct=faster_pct,
        design=design,
        pairs=pairs if design != "four_cell" else None,
        **own,
    )
    cells = tuple(
        ImportedCell(change(_of_day(r, day, build)), _rows(series[r.index]), {}) for r in records
    )
    return write_campaign(Imported(name, plan, cells, {"kind": "simulated"}), runs_dir)


def _of_day(record: CellRecord, day: int, build: str) -> CellRecord:
    started, ended = record.started_unix_s, record.ended_unix_s
    assert started is not None and ended is not None
    return dataclasses.replace(
        record,
        target=dataclasses.replace(record.target, name="phone"),
        identity=dataclasses.replace(record.identity, engine_build_id=build),
        output_sha256="a" * 64,
        started_unix_s=started + day * DAY_S,
        ended_unix_s=ended + day * DAY_S,
    )


def _rows(series: Series) -> tuple[dict[str, float | None], ...]:
    columns = {
        f.name: values
        for f in dataclasses.fields(Series)
        if (values := getattr(series, f.name)) is not None
    }
    return tuple(
        {
            name: None if math.isnan(value) else float(value)
            for name, values in columns.items()
            for value in (values[i],)
        }
        for i in range(len(series))
    )


def with_identity(**fields: Any) -> Change:
    """Every cell's identity with these fields."""
    return lambda r: dataclasses.replace(r, identity=dataclasses.replace(r.identity, **fields))


def with_metrics(**fields: Any) -> Change:
    """Every cell's metrics with these fields."""
    return lambda r: dataclasses.replace(r, metrics=dataclasses.replace(r.metrics, **fields))
