"""What of a campaign is on disk before its first cell, whoever runs it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cell_parts import make_arm, make_plan

from harness.campaign.course import write_first_files
from harness.campaign.parts import Campaign
from harness.journal import read_journal, write_json
from harness.judgement import config_sha256

URI = "http://joe:hunter2@127.0.0.1:9/"


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Campaign:
    """With a password; what only a device and a model tell is left out."""
    monkeypatch.setattr("harness.device.environment.describe_environment", lambda **_: {})
    monkeypatch.setattr("harness.device.deploy.cell_engines", lambda *_: {})
    build = SimpleNamespace(build_id="b", version="1")
    deployed = SimpleNamespace(model_files=[tmp_path], build=build, settings=())
    model = SimpleNamespace(sha256="", info=SimpleNamespace(shards=()))
    data = {"name": "x", "tracking": {"enabled": True, "uri": URI}}
    overrides = ("+experiment=matched_pair", f"tracking.uri={URI}")
    parts: tuple[Any, ...] = (None, data, make_plan(make_arm()), None, deployed, model, overrides)
    return Campaign(tmp_path / "campaign-1", *parts)


def test_before_a_campaign_can_be_resumed_it_knows_its_command_line_and_no_password(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign.directory.mkdir()

    def killed_at_the_plan(path: Path, value: Any) -> None:
        if path.name == "plan.json":
            raise SystemExit
        write_json(path, value)

    monkeypatch.setattr("harness.journal.write_json", killed_at_the_plan)
    with pytest.raises(SystemExit):
        write_first_files(
            campaign, cast("Any", SimpleNamespace(work_dir=None, page_bytes=None, findings=()))
        )
    created = read_journal(campaign.directory)[0].data
    assert created["config_sha256"] == config_sha256({"name": "x"}), "and tracking may move"
    words = created["overrides"]
    assert words[0] == "+experiment=matched_pair" and "127.0.0.1:9" in words[1]
    for path in campaign.directory.iterdir():
        assert b"hunter2" not in path.read_bytes(), path
