"""A shared MLflow server on PostgreSQL: several at once, and one that goes away in mid-campaign."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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

from harness.journal import write_json
from harness.rundir import SWEEP, Sweep

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


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from harness.models.resolve import write_model

    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model({"kind": "synthetic", "geometry": "tiny"}, path, cache_dir=path.parent)
    return path


def test_four_that_log_at_once_are_there_once_each(server: Server, tmp_path: Path) -> None:
    """And their sweep, which each of them finds missing, is one run with four below it."""
    sweep = "20261130T100000Z-io-0001"
    directories = [
        write_campaign(tmp_path / "runs", f"20261130T10000{i}Z-matched_pair-000{i}")
        for i in range(4)
    ]
    for i, directory in enumerate(directories):
        write_json(directory / SWEEP, Sweep(sweep, "io", i, 4, (f"cell.engine.io_threads={i}",)))
    base = [sys.executable, "-m", "harness", "track", "--json", "--uri", server.uri]
    processes = [
        subprocess.Popen([*base, str(d)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for d in directories
    ]
    outcomes = [(*p.communicate(timeout=300), p.returncode) for p in processes]
    assert [(err, code) for _, err, code in outcomes] == [("", 0)] * 4, outcomes
    (rows,) = zip(*(json.loads(out) for out, _, _ in outcomes), strict=True)
    assert all(row["logged"] and row["store"] == server.uri for row in rows)
    parents = [assert_whole(server.uri, directory) for directory in directories]
    assert [p.info.run_id for p in parents] == [row["run_id"] for row in rows]
    (above,) = {p.data.tags["mlflow.parentRunId"] for p in parents}

    from mlflow.tracking import MlflowClient

    client = MlflowClient(server.uri)
    tags = client.get_run(above).data.tags
    assert (tags["harness.kind"], tags["harness.sweep"]) == ("sweep", sweep)
    assert client.get_run(above).info.status == "FINISHED"
    assert tags["mlflow.note.content"].count("cell.engine.io_threads=") == 4
    runs = client.search_runs([p.info.experiment_id for p in parents][:1])
    assert len(runs) == 1 + 4 + 4 * 3, "nothing twice"

    again = subprocess.run([*base, *map(str, directories)], capture_output=True, check=False)
    assert again.returncode == 0, again
    assert len(client.search_runs([parents[0].info.experiment_id])) == len(runs)
    assert [client.get_run(r.info.run_id).data.tags for r in runs] == [r.data.tags for r in runs]


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
