"""The gate over a sweep: its exit code where some campaigns of it passed, and others did not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from gate_parts import night

from harness.cli import main
from harness.records import CellRecord
from harness.sweep.state import Part, Status, SweepState, write_state


def crashed(record: CellRecord) -> CellRecord:
    if record.arm != "C":
        return record
    return dataclasses.replace(record, status="failed", exit_code=139, status_detail="signal 11")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    night(tmp_path, 1, name="aa").rename(tmp_path / "baseline")
    return tmp_path


def gate(runs: Path, *parts: Part) -> int:
    directory = runs / "20261130T000000Z-sweep-x-0001"
    directory.mkdir()
    write_state(directory, SweepState(directory.name, "x", (), parts))
    return main(["sweep", "last", "--runs-dir", str(runs), "--gate", "baseline", "--json"])


def part(status: Status, campaign: Path | None = None) -> Part:
    return Part("aa", (), (), status, campaign=None if campaign is None else campaign.name)


def test_what_passed_does_not_make_up_for_what_crashed(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = night(runs, 2, name="aa", build="b1")
    bad = night(runs, 3, name="aa", build="b1", change=crashed)
    assert gate(runs, part("ran", good), part("ran", bad)) == 3
    gated = json.loads(capsys.readouterr().out)["gate"]
    assert [g["verdict"] for g in gated] == ["pass", "none"]


@pytest.mark.parametrize("status", ["stopped", "refused", "interrupted", "running"])
def test_nor_for_what_did_not_come_to_its_end(runs: Path, status: Status) -> None:
    good = night(runs, 2, name="aa", build="b1")
    assert gate(runs, part("ran", good), part(status)) == 3


@pytest.mark.parametrize("status", ["left_out", "planned"])
def test_what_did_not_begin_is_nobodys_fault(runs: Path, status: Status) -> None:
    good = night(runs, 2, name="aa", build="b1")
    assert gate(runs, part("ran", good), part(status)) == 0


def test_what_cannot_be_read_is_no_fault_either(runs: Path) -> None:
    good = night(runs, 2, name="aa", build="b1")
    busy = night(runs, 3, name="aa", build="b1", scenario="day40")
    assert gate(runs, part("ran", good), part("ran", busy)) == 0


def test_a_copy_in_the_directory_one_is_in_is_not_asked_instead(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = night(runs, 2, name="aa", build="b1")
    here = tmp_path / "here"
    night(here, 2, name="aa", build="b1", faster_pct=-20).rename(here / good.name)
    monkeypatch.chdir(here)
    assert gate(runs, part("ran", good)) == 0
    assert not (here / good.name / "gate.json").exists()
