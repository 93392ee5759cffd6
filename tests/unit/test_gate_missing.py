"""What was not measured, in some cells of a campaign that the gate is asked about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gate_parts import Change, night, with_metrics

from harness.cli import main
from harness.records import CellRecord

LIMITED = {"anon_within_limit": True, "anon_peak_bytes": 100_000_000}


def answer(
    place: Path, change: Change, metric: str, capsys: pytest.CaptureFixture[str], **own: Any
) -> Any:
    """Of a night like another in all but `change`."""
    then = night(place, 1, change=with_metrics(**LIMITED))
    now = night(place, 2, build="b1", change=change, **own)
    words = ["gate", "--baseline", str(then), "--candidate", str(now), "--metric", metric, "--json"]
    main([*words, "--runs-dir", str(place)])
    return json.loads(capsys.readouterr().out)


def but_for_one_cell(field: str, value: object) -> Change:
    def change(record: CellRecord) -> CellRecord:
        kept = with_metrics(**LIMITED)(record)
        return with_metrics(**{field: value})(kept) if record.index == 4 else kept

    return change


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("anon_within_limit", None),
        ("anon_peak_bytes", None),
        ("hit_rate", None),
        ("tok_s", None),
        ("tok_s", float("nan")),
    ],
)
def test_a_cell_that_ended_well_without_the_metric_is_no_pass(
    metric: str, value: float | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(tmp_path, but_for_one_cell(metric, value), metric, capsys)
    assert len({c["arm"] for c in found["cases"] if c["outcome"] != "pass"}) == 1
    assert found["verdict"] == "none" and f"has no {metric} now" in found["headline"]
    assert {c["arm"] for c in found["cases"] if c["metric"] == metric} == {"B", "C"}


def test_a_regression_that_some_cells_show_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def more(record: CellRecord) -> CellRecord:
        peak = None if record.index == 4 else 200_000_000
        return with_metrics(anon_peak_bytes=peak)(record)

    found = answer(tmp_path, more, "anon_peak_bytes", capsys)
    assert found["verdict"] == "regression"


def test_where_all_is_measured_it_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(tmp_path, with_metrics(**LIMITED), "anon_peak_bytes", capsys)
    assert found["verdict"] == "pass"
