"""What a campaign writes beside its records cannot end it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from report_parts import throttled_four_cells

from harness.campaign.sinks import write_page, write_page_of_what_there_is
from harness.judgement import Measured, judge


class View:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str, style: str = "") -> None:
        self.lines.append(text)


def of(directory: Path) -> Any:
    return SimpleNamespace(directory=directory)


def written(place: Path, cells: int = 4) -> Path:
    made = throttled_four_cells(tokens=64)
    made.records = made.records[:cells]
    return made.write(place / "runs")


def test_a_page_that_cannot_be_written_costs_one_line(tmp_path: Path) -> None:
    directory, view = written(tmp_path), View()
    (directory / "report.html").mkdir()
    measured = Measured.read(directory)
    records = measured.records()
    write_page(of(directory), records, judge(measured, records), view)  # type: ignore[arg-type]
    write_page_of_what_there_is(of(directory), view)  # type: ignore[arg-type]
    assert len(view.lines) == 2
    for line in view.lines:
        assert line.startswith("warning: report.html was not written: ") and "\n" not in line
    assert [p.name for p in directory.glob("*.tmp")] == []
    assert [p.name for p in directory.glob(".*.tmp")] == []


def test_a_campaign_that_ended_early_has_a_page_once_a_cell_has_ended(tmp_path: Path) -> None:
    directory, view = written(tmp_path, cells=1), View()
    write_page_of_what_there_is(of(directory), view)  # type: ignore[arg-type]
    assert view.lines == [f"report: {directory / 'report.html'}"]
    assert "1 cell of 4 planned" in (directory / "report.html").read_text()


def test_a_campaign_without_a_cell_has_none(tmp_path: Path) -> None:
    directory, view = written(tmp_path, cells=0), View()
    write_page_of_what_there_is(of(directory), view)  # type: ignore[arg-type]
    assert view.lines == [] and not (directory / "report.html").exists()


def test_a_journal_that_cannot_be_read_costs_one_line(tmp_path: Path) -> None:
    directory, view = written(tmp_path), View()
    (directory / "journal.jsonl").write_text("{\n{\n")
    write_page_of_what_there_is(of(directory), view)  # type: ignore[arg-type]
    (line,) = view.lines
    assert line.startswith("warning: report.html was not written: ")
