"""What a campaign's directory says of the sweep that it is part of."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import DeviceError
from harness.journal import write_json
from harness.rundir import SWEEP, Sweep, read_sweep


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
