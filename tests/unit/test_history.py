"""How long cells took before: of the newest campaign that ran the same work, however long ago."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cell_parts import make_arm, make_plan
from record_parts import paging

from harness import history
from harness.history import expected_in_all, expected_seconds
from harness.journal import Journal, write_json
from harness.planned import Plan
from harness.records import CellStatus
from harness.rundir import ENVIRONMENT, PLAN


def campaign(
    runs: Path, number: int, plan: Plan, seconds: float, status: CellStatus = "ok"
) -> None:
    directory = runs / f"20260101T{number:06d}Z-x-0000"
    directory.mkdir(parents=True)
    write_json(directory / PLAN, plan)
    write_json(directory / ENVIRONMENT, {"model_sha256": "m"})
    with Journal.open(directory) as journal:
        cell = plan.cells[0]
        record = replace(
            paging(cell.arm, None, index=cell.index, status=status),
            started_unix_s=100.0,
            ended_unix_s=100.0 + seconds,
        )
        journal.write_record(journal.make_cell_dir("00-cell"), record)


def test_the_newest_campaign_of_the_same_work_tells(tmp_path: Path) -> None:
    asked = make_plan(make_arm("asked"), make_arm("other", n_predict=9), wait_s=30)
    campaign(tmp_path, 1, make_plan(make_arm("older")), 20.0)
    campaign(tmp_path, 2, make_plan(make_arm("newer")), 10.0)
    assert expected_seconds(tmp_path, asked, "m", None) == {"asked": 10.0}
    assert expected_seconds(tmp_path, asked, "another", None) == {}
    # 30 s before each but the first; the sentinel is `asked` again
    assert expected_in_all(asked, {"asked": 10.0}) == (80.0, 1)


@pytest.mark.parametrize(("status", "known"), [("refused", True), ("failed", False)])
def test_a_cell_that_is_refused_will_be_again_and_one_that_failed_tells_nothing(
    tmp_path: Path, status: CellStatus, known: bool
) -> None:
    campaign(tmp_path, 1, make_plan(make_arm()), 3.0, status)
    found = expected_seconds(tmp_path, make_plan(make_arm()), "m", None)
    assert found == ({"baseline": 3.0} if known else {})


def test_of_campaigns_of_other_work_no_record_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A night that left an experiment out for a week still finds how long it took."""
    campaign(tmp_path, 0, make_plan(make_arm()), 7.0)
    for number in range(1, 60):
        campaign(tmp_path, number, make_plan(make_arm(n_predict=number + 10)), 1.0)
    read: list[Path] = []
    load = history.load_records
    monkeypatch.setattr(history, "load_records", lambda d: (read.append(d), load(d))[1])
    assert expected_seconds(tmp_path, make_plan(make_arm()), "m", None) == {"baseline": 7.0}
    assert len(read) == 1
