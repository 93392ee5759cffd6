"""`import csv`: plain tables into campaign directories."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from harness.collect import read_series
from harness.errors import UsageError
from harness.importers import cli
from harness.importers.plain_csv import read_csv_campaign
from harness.journal import load_records
from harness.jsonable import from_json
from harness.records import Plan

SIMULATED = Path("/work/shared/data/simulated")


def campaign(path: Path, arms: list[str], extra: dict[str, list[str]] | None = None) -> Path:
    """A campaign of `arms` with the three columns that are needed, and `extra` ones."""
    path.mkdir(parents=True, exist_ok=True)
    columns = extra or {}
    with (path / "campaign.csv").open("w", newline="") as stream:
        out = csv.writer(stream, lineterminator="\n")
        out.writerow(["cell", "config", "file", *columns])
        for i, arm in enumerate(arms):
            out.writerow([i, arm, f"c{i}.csv", *(values[i] for values in columns.values())])
    for i in range(len(arms)):
        (path / f"c{i}.csv").write_text("token,wall_ms\n0,100\n1,150.5\n2,99.5\n")
    return path


def imported(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> Path:
    """The campaign directory that `import csv` makes of `path`."""
    runs = path.parent / "runs"
    assert cli.main(["csv", str(path), "--runs-dir", str(runs), "--json", *more]) == 0
    return Path(json.loads(capsys.readouterr().out)["campaign_dir"])


def refusal(path: Path, baseline: str | None = None, design: str | None = None) -> str:
    with pytest.raises(UsageError) as error:
        read_csv_campaign(path, name=None, baseline=baseline, design=design)
    return str(error.value)


def test_three_columns_are_enough_and_nothing_else_is_made_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = imported(campaign(tmp_path / "mine", ["B", "C", "C", "B"]), capsys)
    records = load_records(directory)
    assert [(r.cell, r.arm, r.role, r.index) for r in records] == [
        ("B_01", "B", "baseline", 0),
        ("C_01", "C", "candidate", 1),
        ("C_02", "C", "candidate", 2),
        ("B_02", "B", "baseline", 3),
    ]
    first = records[0]
    assert first.metrics.tok_s == pytest.approx(3 / 0.35)
    assert first.counters.tokens == 3
    assert first.counters.read_bytes is None and first.counters.dropped is None
    assert first.entry is None and first.probe.before is None and first.wait is None
    assert first.metrics.hit_rate is None and first.metrics.stall_ms_per_token is None
    series = read_series(directory / "cells" / "00-B_01")
    assert series is not None and series.wall_ms.tolist() == [100, 150.5, 99.5]
    assert series.io_ms is None and series.majflt is None
    plan = from_json(Plan, json.loads((directory / "plan.json").read_bytes()))
    assert (plan.design, plan.baseline, plan.candidates) == ("pairs", "B", ("C",))
    assert [c.block for c in plan.cells] == [0, 0, 1, 1] and plan.coins is None
