"""What a campaign's directory is, to the tracking store, once something happened to it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tracking_parts import write_campaign, write_journal

from harness.tracking_data import RunStatus, read_campaign


@pytest.mark.parametrize(
    ("events", "status"),
    [
        (("campaign_finished", "campaign_resumed"), "KILLED"),
        (("campaign_finished", "campaign_resumed", "campaign_interrupted"), "KILLED"),
        (("campaign_finished", "campaign_resumed", "campaign_stopped"), "FAILED"),
        (("campaign_interrupted", "campaign_resumed", "campaign_finished"), "FINISHED"),
    ],
)
def test_the_last_of_its_ends_decides(
    tmp_path: Path, events: tuple[str, ...], status: RunStatus
) -> None:
    directory = write_campaign(tmp_path)
    shutil.rmtree(directory / "cells" / "02-sentinel")  # being measured again, or not needed
    write_journal(directory, *events)
    assert read_campaign(directory).parent.status == status
    assert read_campaign(directory, running=True).parent.status == "RUNNING"
