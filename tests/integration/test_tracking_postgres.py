"""A shared MLflow server on PostgreSQL: several at once, and one that goes away in mid-campaign."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cell_parts import FAKE_ENGINE
from postgres_parts import PASSWORD, postgres
from tracking_parts import (
    Campaign,
    Server,
    assert_whole,
    children_of,
    parent_of,
    served,
    wait_for,
    write_campaign,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """Its tables are made once, before the workers of a server start and each find none."""
    with postgres() as uri:
        subprocess.run(
            [sys.executable, "-m", "mlflow", "db", "upgrade", uri],
            check=True,
            timeout=300,
            capture_output=True,
            env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"},
        )
        yield uri


@pytest.fixture(scope="module")
def server(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("server"), database, workers=2) as running:
        yield running


# one campaign of a sweep, as the sweep runs it; its others run elsewhere at the same time
MEMBER = """
import json, sys
from harness.campaign.course import run
from harness.campaign.parts import Member
from harness.rundir import Sweep
sys.exit(run(sys.argv[2:], Member(Sweep(*json.loads(sys.argv[1])))))
"""
CELLS = 4


def test_four_that_are_measured_and_log_at_once_are_there_once_each(
    server: Server, launcher: Path, model: Path, tmp_path: Path
) -> None:
    """Each on a device of its own, into an experiment and a sweep that none finds there.

    What a busy machine kept from being logged in time is logged by `track`, by four at once, too.
    """
    sweep = "20261130T120000Z-at_once-0001"
    words = ("name=at_once", f"tracking.uri={server.uri}")
    four = [Campaign(tmp_path / str(i), launcher, model, FAKE_ENGINE, *words) for i in range(4)]
    try:
        for i, campaign in enumerate(four):
            member = json.dumps([sweep, "at_once", i, len(four), [f"place={i}"]])
            campaign.argv[1:3] = ["-c", MEMBER, member]
            campaign.hold(CELLS - 1)
            campaign.start()
        for campaign in four:
            campaign.await_record(CELLS - 2)
        before = [parent_of(server.uri, campaign.directory.name) for campaign in four]
        assert [run.info.status for run in before] == ["RUNNING"] * 4
        wait_for(lambda: any(children_of(server.uri, run) for run in before))
        for campaign in four:
            campaign.release(CELLS - 1)
        in_time = [f"logged to {server.uri}" in campaign.wait() for campaign in four]
    finally:
        for campaign in four:
            campaign.end()
    assert any(in_time), [campaign.output for campaign in four]
    there = {
        campaign.directory: assert_whole(server.uri, campaign.directory)
        for campaign, logged in zip(four, in_time, strict=True)
        if logged
    }

    rows = tracked_at_once(server.uri, [campaign.directory for campaign in four])
    parents = [assert_whole(server.uri, campaign.directory) for campaign in four]
    ids = [run.info.run_id for run in parents]
    assert ids == [run.info.run_id for run in before] == [row["run_id"] for row in rows]
    for campaign, run in zip(four, parents, strict=True):
        assert run.data.tags == there.get(campaign.directory, run).data.tags

    from mlflow.tracking import MlflowClient

    runs = MlflowClient(server.uri).search_runs([parents[0].info.experiment_id])
    assert len(runs) == 1 + 4 + 4 * CELLS, "nothing twice"
    assert {run.info.status for run in runs} == {"FINISHED"}
    (above,) = {run.data.tags["mlflow.parentRunId"] for run in parents}
    (tags,) = [run.data.tags for run in runs if run.info.run_id == above]
    assert (tags["harness.kind"], tags["harness.sweep"]) == ("sweep", sweep)
    assert tags["mlflow.note.content"].count("place=") == 4


def tracked_at_once(uri: str, directories: Sequence[Path]) -> list[dict[str, Any]]:
    """What `track` says of each, run for all of them at the same time."""
    base = [sys.executable, "-m", "harness", "track", "--json", "--uri", uri]
    processes = [
        subprocess.Popen([*base, str(d)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for d in directories
    ]
    outcomes = [(*p.communicate(timeout=300), p.returncode) for p in processes]
    assert [(err, code) for _, err, code in outcomes] == [("", 0)] * len(directories), outcomes
    (rows,) = zip(*(json.loads(out) for out, _, _ in outcomes), strict=True)
    assert all(row["logged"] and row["store"] == uri for row in rows)
    return list(rows)


def test_a_server_that_goes_away_in_mid_campaign_loses_nothing(
    server: Server, launcher: Path, model: Path, tmp_path: Path
) -> None:
    address = server.uri.replace("http://", "http://somebody:hunter2@")
    campaign = Campaign(
        tmp_path, launcher, model, FAKE_ENGINE, "name=away", f"tracking.uri={address}"
    )
    campaign.hold(1, 3)
    try:
        campaign.start()
        campaign.await_record(0)
        directory = campaign.directory
        parent = parent_of(server.uri, directory.name)
        assert parent.info.status == "RUNNING"
        # how much of the cell is there by now depends on how busy this machine is
        wait_for(lambda: len(children_of(server.uri, parent)) == 1, campaign)
        assert_secret_is_nowhere(campaign)

        server.stop()
        campaign.release(1)
        campaign.await_record(2)
        server.start()
        campaign.release(3)
        output = campaign.wait()
    finally:
        campaign.end()
    warnings = [line for line in output.splitlines() if "warning" in line and "MLflow" in line]
    assert len(warnings) == 1, output
    assert "the campaign goes on" in warnings[0]
    assert f"logged to {server.uri}" in output
    parent = assert_whole(server.uri, directory)
    assert len(children_of(server.uri, parent)) == 4
    said = json.dumps([parent.data.tags, parent.data.params, output])
    for text in (said, *(p.read_text() for p in directory.rglob("*") if p.suffix in TEXTS)):
        assert "hunter2" not in text


TEXTS = (".json", ".jsonl", ".yaml", ".txt", ".html")


def assert_secret_is_nowhere(campaign: Campaign) -> None:
    """The process that logs was told the password, but not where others can read it."""
    import psutil

    assert campaign.process is not None
    (worker,) = [
        p
        for p in psutil.Process(campaign.process.pid).children()
        if any("tracking_worker" in word for word in p.cmdline())
    ]
    assert not any("hunter2" in word for word in worker.cmdline())


def test_a_database_itself_may_be_the_store(database: str, tmp_path: Path) -> None:
    """Its password is said nowhere; files go beside the campaigns."""
    directory = write_campaign(tmp_path / "runs", "20261130T110000Z-direct-0001")
    config = directory / "config.yaml"
    config.write_text(config.read_text().replace("name: matched_pair", "name: direct"))
    words = [sys.executable, "-m", "harness", "track", str(directory), "--uri"]
    done = subprocess.run([*words, database], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert_whole(database, directory)
    wrong = database.replace(PASSWORD, "wr0ng-pw")
    refused = subprocess.run([*words, wrong], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "authentication failed" in refused.stdout
    for said in (done.stdout, refused.stdout, refused.stderr):
        assert PASSWORD not in said
        assert "wr0ng-pw" not in said
