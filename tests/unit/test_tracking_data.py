"""What a campaign's directory is, to the tracking store, once something happened to it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from gate_parts import night
from tracking_parts import write_campaign, write_journal

from harness.judgement import Measured
from harness.tracking_data import RunStatus, read_campaign
from harness.tracking_text import without_credentials


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


def edited(directory: Path) -> None:
    """By hand: the journal has another hash."""
    path = directory / "cells" / "01-cache_half" / "record.json"
    record = json.loads(path.read_bytes())
    record["metrics"]["tok_s"] = 1.0
    path.write_text(json.dumps(record))


def no_json(directory: Path) -> None:
    (directory / "cells" / "01-cache_half" / "record.json").write_text("{")


def gone(directory: Path) -> None:
    shutil.rmtree(directory / "cells" / "01-cache_half")


def cut_short(directory: Path) -> None:
    path = directory / "cells" / "01-cache_half" / "tokens.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize("damage", [edited, no_json, gone, cut_short])
def test_what_the_report_leaves_out_is_no_result_here(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    directory = write_campaign(tmp_path)
    assert read_campaign(directory).parent.status == "FINISHED"
    damage(directory)
    found = read_campaign(directory)
    assert [c.name[:-5] for c in found.cells] == ["00-baseline", "02-sentinel"]
    measured = Measured.read(directory)
    assert [r.index for r in measured.records()] == [0, 2]
    assert found.parent.status == "FAILED"
    note = found.parent.tags["mlflow.note.content"]
    assert f"**cache_half is damaged, and left out**: {measured.damaged[1]}" in note
    assert f"harness report {directory.name}` judges what is left" in note
    assert not [k for k in found.parent.tags if k.startswith("verdict.")]
    assert "verdict.json" not in {p.name for p in found.parent.files}


def test_a_record_without_its_event_does_not_count_yet(tmp_path: Path) -> None:
    directory = write_campaign(tmp_path)
    aside = directory / "aside"
    (directory / "cells" / "02-sentinel").rename(aside)
    write_journal(directory)
    aside.rename(directory / "cells" / "02-sentinel")  # on disk, and about to be journaled
    found = read_campaign(directory, running=True)
    assert (found.parent.status, len(found.cells)) == ("RUNNING", 2)


@pytest.mark.parametrize("again", ["pending", "measured"])
def test_a_verdict_is_not_shown_of_cells_that_were_measured_again(
    tmp_path: Path, again: str
) -> None:
    directory = write_campaign(tmp_path)
    if again == "pending":
        no_json(directory)
    with (directory / "journal.jsonl").open("a") as journal:
        seq = len((directory / "journal.jsonl").read_text().splitlines())
        journal.write(json.dumps({"seq": seq, "unix_s": 1.0, "event": "campaign_resumed"}) + "\n")
    found = read_campaign(directory)
    assert found.parent.status == "KILLED"
    assert found.parent.tags["harness.verdict"].startswith("no verdict")


def test_an_import_is_logged_by_its_own_journal(tmp_path: Path) -> None:
    directory = night(tmp_path, 1)
    assert read_campaign(directory).parent.status == "FINISHED"
    next(directory.glob("cells/*/record.json")).write_text("{")
    assert read_campaign(directory).parent.status == "FAILED"


@pytest.mark.parametrize(
    "uri",
    [
        "http://h:9/?access_token=hunter2",
        "http://h/?x=1&api_key=hunter2&y=2",
        "postgresql://h/db?sslpassword=hunter2",
        "http://h/?X-Amz-Signature=hunter2",
        "http://h/#id_token=hunter2",
    ],
)
def test_what_an_address_names_a_secret_is_one(uri: str) -> None:
    """It is stored in config.yaml and journal.jsonl, and logged."""
    assert without_credentials(uri) == uri.replace("hunter2", "***")
    assert without_credentials("http://h/?tokens=5&author=joe") == "http://h/?tokens=5&author=joe"
