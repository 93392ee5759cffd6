"""Finding a campaign, and what its directory says of the sweep that it is part of."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import DeviceError
from harness.journal import write_json
from harness.rundir import CONFIG, PLAN, SWEEP, Sweep, find_campaign, read_sweep


def test_a_campaign_that_stands_alone_has_no_sweep(tmp_path: Path) -> None:
    assert read_sweep(tmp_path) is None


def test_a_sweep_is_read_as_it_was_written(tmp_path: Path) -> None:
    sweep = Sweep("20261130T100000Z-io-7f", "io", 2, 6, ("cell.engine.io_threads=4",))
    write_json(tmp_path / SWEEP, sweep)
    assert read_sweep(tmp_path) == sweep


@pytest.mark.parametrize(
    ("content", "wrong"), [("{", "sweep.json: "), ('{"id": 3}', "sweep.json.id: ")]
)
def test_a_damaged_sweep_is_named(tmp_path: Path, content: str, wrong: str) -> None:
    (tmp_path / SWEEP).write_text(content)
    with pytest.raises(DeviceError, match=wrong) as caught:
        read_sweep(tmp_path)
    assert "\n" not in str(caught.value)


def test_an_id_is_one_in_runs_dir_also_beside_a_copy_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (tmp_path / "runs" / "a", tmp_path / "a", tmp_path / "b"):
        place.mkdir(parents=True)
        for name in (CONFIG, PLAN):
            (place / name).touch()
    monkeypatch.chdir(tmp_path)
    runs = Path("runs")
    assert find_campaign("a", runs) == runs / "a"
    assert find_campaign(str(tmp_path / "a"), runs) == tmp_path / "a"
    assert find_campaign("b", runs) == Path("b")
