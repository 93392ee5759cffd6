"""Stores that are away, silent, failing, slow or full; campaigns that end in the middle."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from cell_parts import FAKE_ENGINE
from tracking_parts import (
    EXPERIMENT,
    Campaign,
    assert_whole,
    children_of,
    parent_of,
    wait_for,
    write_another_cell,
    write_campaign,
    write_journal,
)

from harness.campaign.tracker import CELL_S
from harness.journal import Journal, write_json
from harness.rundir import SWEEP, Sweep
from harness.tracking import CampaignLog, log_campaign, mark_killed
from harness.tracking_process import LoggingProcess
from harness.tracking_store import TrackingError, default_uri
from harness.tracking_worker import Request

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


class Failing(http.server.BaseHTTPRequestHandler):
    """Well, if asked, and fails at everything else."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 500)
        self.end_headers()

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def failing() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Failing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def silent() -> Iterator[str]:
    """Takes connections, and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(100)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture(scope="module")
def trickling() -> Iterator[str]:
    """Well, if asked; to everything else a byte a second, which no time limit of a request ends."""

    class Trickling(Failing):
        def do_GET(self) -> None:
            if self.path == "/health":
                return super().do_GET()
            try:
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while not over.wait(1):
                    self.wfile.write(b" ")
                    self.wfile.flush()
            except OSError:
                return None
            return None

    over = threading.Event()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Trickling) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        over.set()
        server.shutdown()
        thread.join()


# --- a campaign goes on --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["silent", "failing"])
def test_a_server_in_trouble_costs_seconds_and_one_line(
    kind: str, launcher: Path, model: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    uri = request.getfixturevalue(kind)
    empty_store = request.getfixturevalue("empty_store")
    campaign = Campaign(tmp_path, launcher, model, FAKE_ENGINE, f"tracking.uri={uri}")
    try:
        campaign.start()
        output = campaign.wait()
    finally:
        campaign.end()
    warnings = [line for line in output.splitlines() if "warning" in line and "MLflow" in line]
    assert ["the campaign goes on" in line for line in warnings] == [True, False], output
    directory = campaign.directory
    command = f"python -m harness track {directory.name} --runs-dir {directory.parent}"
    assert warnings[1].endswith(f"later: {command}")
    events = [json.loads(line) for line in (directory / "journal.jsonl").read_text().splitlines()]
    ended = {e["index"]: e["unix_s"] for e in events if e["event"] == "cell_finished"}
    waited = {e["index"]: e["unix_s"] for e in events if e["event"] == "cell_waiting"}
    # what else is done in between is next to nothing, but this machine may be busy
    assert all(waited[i + 1] - ended[i] < CELL_S + 40 for i in range(3))

    (directory.parent / "mlflow.db").write_bytes(empty_store)
    words = [*command.split()[1:], "--uri", default_uri(directory.parent)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert_whole(default_uri(directory.parent), directory)


def test_a_store_that_answers_drop_by_drop_is_given_up(trickling: str, tmp_path: Path) -> None:
    directory = write_campaign(tmp_path / "runs")
    request = Request(str(directory), trickling, str(directory.parent), EXPERIMENT, 60, 60)
    with LoggingProcess() as process:
        with pytest.raises(TrackingError, match="did not answer within"):
            process.ask(request, at_most_s=8)
        assert process.pid is None, "and what hangs is ended"


def test_a_full_disk_is_one_line_and_the_rest_is_logged_later(runs: Path) -> None:
    """A store that can take no more, by SQLite's own limit, until it can."""
    import sqlite3

    directory = write_campaign(runs)
    log = CampaignLog(directory, uri=None, runs_dir=runs, experiment=EXPERIMENT)
    with sqlite3.connect(runs / "mlflow.db") as db:
        db.execute(
            "CREATE TRIGGER full BEFORE INSERT ON metrics WHEN NEW.step = 100 "
            "BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
        )
    with pytest.raises(TrackingError, match="database or disk is full") as caught:
        log.sync()
    assert "\n" not in str(caught.value)
    with sqlite3.connect(runs / "mlflow.db") as db:
        db.execute("DROP TRIGGER full")
    log.sync()
    assert_whole(default_uri(runs), directory)


def test_the_process_that_logs_sleeps_while_a_cell_runs(runs: Path) -> None:
    directory = write_campaign(runs)
    with LoggingProcess() as process:
        process.ask(
            Request(str(directory), None, str(runs), EXPERIMENT, 600, 120, True), at_most_s=600
        )
        assert process.pid is not None
        worker = psutil.Process(process.pid)

        def sleeps() -> bool:
            before = worker.cpu_times()
            time.sleep(2)
            after = worker.cpu_times()
            return (after.user, after.system) == (before.user, before.system)

        # what it does after its answer may come late
        until = time.monotonic() + 60
        while not sleeps():
            assert time.monotonic() < until, "it does not come to rest"


# --- again, and in pieces ------------------------------------------------------------------------


def test_what_was_cut_off_is_completed_and_nothing_made_twice(runs: Path) -> None:
    directory = write_campaign(runs)

    cut = 0
    for cut_at in range(1, 9):  # a cell takes as many requests
        requests = iter(range(cut_at))

        def in_time(left: Iterator[int] = requests) -> None:
            if next(left, None) is None:
                raise TrackingError("cut off")

        try:
            CampaignLog(directory, uri=None, runs_dir=runs, experiment=EXPERIMENT).sync(
                in_time=in_time
            )
        except TrackingError as e:
            assert "cut off" in str(e)
            cut += 1
    assert cut >= 7
    log_campaign(directory, uri=None, runs_dir=runs, experiment=EXPERIMENT)
    parent = assert_whole(default_uri(runs), directory)

    from mlflow.entities import ViewType
    from mlflow.tracking import MlflowClient

    every = MlflowClient(default_uri(runs)).search_runs(
        [parent.info.experiment_id], "", ViewType.ALL
    )
    assert len(every) == 4, "not even deleted ones"


def test_two_runs_of_one_cell_become_one(runs: Path) -> None:
    """As a request leaves it whose answer never came."""
    from mlflow.tracking import MlflowClient

    directory = write_campaign(runs)
    log_campaign(directory, uri=None, runs_dir=runs, experiment=EXPERIMENT)
    client = MlflowClient(default_uri(runs))
    parent = parent_of(default_uri(runs), directory.name)
    cell = children_of(default_uri(runs), parent)[1]
    for run in (cell, parent):
        tags = {k: v for k, v in run.data.tags.items() if k != "harness.digest"}
        client.create_run(run.info.experiment_id, tags=tags, run_name=run.info.run_name)
    log_campaign(directory, uri=None, runs_dir=runs, experiment=EXPERIMENT)
    assert assert_whole(default_uri(runs), directory).info.run_id == parent.info.run_id


# --- campaigns that end in the middle ------------------------------------------------------------


def running(runs: Path, name: str) -> Path:
    """A campaign that the store says runs; it has one cell, and no process."""
    directory = write_campaign(runs, name)
    for cell in ("01-cache_half", "02-sentinel"):
        shutil.rmtree(directory / "cells" / cell)
    (directory / "verdict.json").unlink()
    write_journal(directory)
    CampaignLog(directory, uri=None, runs_dir=runs, experiment=EXPERIMENT).sync(running=True)
    return directory


def test_what_a_dead_harness_left_running_is_killed_by_who_logs_next(runs: Path) -> None:
    from mlflow.tracking import MlflowClient

    uri = default_uri(runs)
    client = MlflowClient(uri)
    alive = running(runs, "20261130T120000Z-x-0000")
    with Journal.open(alive):
        elsewhere = running(runs, "20261130T120001Z-x-0001")
        run_id = parent_of(uri, elsewhere.name).info.run_id
        client.set_tag(run_id, "harness.host", "another machine")
        dead = running(runs, "20261130T120002Z-x-0002")
        assert mark_killed(None, runs) == [dead.name]
        status = {d: parent_of(uri, d.name).info.status for d in (dead, alive, elsewhere)}
        assert status == {dead: "KILLED", alive: "RUNNING", elsewhere: "RUNNING"}
        assert "**killed**" in parent_of(uri, dead.name).data.tags["mlflow.note.content"]
    other = write_campaign(runs)
    log_campaign(other, uri=None, runs_dir=runs, experiment=EXPERIMENT)  # marks, too
    assert parent_of(uri, alive.name).info.status == "KILLED"
    assert parent_of(uri, elsewhere.name).info.status == "RUNNING"

    # a resume goes on with the same run
    CampaignLog(dead, uri=None, runs_dir=runs, experiment=EXPERIMENT).sync(running=True)
    assert parent_of(uri, dead.name).info.status == "RUNNING"


def test_a_campaign_that_still_runs_is_left_to_itself(runs: Path) -> None:
    directory = running(runs, "20261130T120000Z-x-0001")
    with Journal.open(directory):
        done = subprocess.run(
            [sys.executable, "-m", "harness", "track", "--json", str(directory)],
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "")
    (row,) = json.loads(done.stdout)
    assert row["logged"] is False
    assert "is running" in row["error"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_ended_campaign_is_killed_in_the_store_and_finished_once_resumed(
    number: signal.Signals, launcher: Path, model: Path, tmp_path: Path, empty_store: bytes
) -> None:
    campaign = Campaign(tmp_path, launcher, model, FAKE_ENGINE)
    campaign.runs.mkdir()
    (campaign.runs / "mlflow.db").write_bytes(empty_store)
    uri = default_uri(campaign.runs)
    campaign.hold(1)
    try:
        campaign.start()
        campaign.await_record(0)
        directory = campaign.directory
        wait_for(lambda: bool(cells_in(uri, directory)), campaign)
        assert parent_of(uri, directory.name).info.status == "RUNNING"
        assert campaign.process is not None
        os.kill(campaign.process.pid, number)
        campaign.wait(130 if number == signal.SIGTERM else -number)
        wait_for(lambda: parent_of(uri, directory.name).info.status == "KILLED")
        campaign.release(1)
        campaign.start(f"resume={directory}")
        campaign.wait()
    finally:
        campaign.end()
    assert_whole(uri, directory)


def cells_in(uri: str, directory: Path) -> list[Any]:
    parent = parent_of(uri, directory.name)
    return [] if parent is None else children_of(uri, parent)


# --- sweeps, and what was given ------------------------------------------------------------------


def test_a_sweep_ends_with_its_last_campaign(runs: Path) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(default_uri(runs))
    found = []
    for index in range(2):
        directory = write_campaign(runs, f"20261130T13000{index}Z-io-000{index}")
        write_json(directory / SWEEP, Sweep("s1", "io", index, 2, (f"cell.n_predict={index}",)))
        log_campaign(directory, uri=None, runs_dir=runs, experiment=EXPERIMENT)
        parent = parent_of(default_uri(runs), directory.name)
        found.append(client.get_run(parent.data.tags["mlflow.parentRunId"]))
    assert found[0].info.run_id == found[1].info.run_id
    assert [run.info.status for run in found] == ["RUNNING", "FINISHED"]
    lines = found[1].data.tags["mlflow.note.content"].splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "- `cell.n_predict=0`",
        "- `cell.n_predict=1`",
    ]


def test_a_nights_sweep_ends_in_each_experiment_with_its_last_campaign_there(runs: Path) -> None:
    """Its others have experiments of their own, and never come to this one."""
    from mlflow.tracking import MlflowClient

    directory = write_campaign(runs)
    write_json(directory / SWEEP, Sweep("s1", "nightly", 0, 12, ("experiment=io",), alike=1))
    log_campaign(directory, uri=None, runs_dir=runs, experiment=EXPERIMENT)
    parent = parent_of(default_uri(runs), directory.name)
    sweep = MlflowClient(default_uri(runs)).get_run(parent.data.tags["mlflow.parentRunId"])
    assert sweep.info.status == "FINISHED"


def test_model_and_texts_are_inputs_of_cells_and_campaign(runs: Path) -> None:
    directory = write_campaign(runs)
    write_json(
        directory / "environment.json",
        {"model_path": "/models/m.gguf", "model_sha256": "a" * 64, "model_bytes": 5},
    )
    write_another_cell(directory, 3)
    log_campaign(directory, uri=None, runs_dir=runs, experiment=EXPERIMENT)
    parent = parent_of(default_uri(runs), directory.name)
    for run in (parent, *children_of(default_uri(runs), parent)):
        inputs = {i.dataset.name: i for i in run.inputs.dataset_inputs}
        assert inputs.keys() == {"m.gguf", "prompt"}
        model = inputs["m.gguf"].dataset
        assert model.digest == "a" * 36
        assert json.loads(model.profile) == {"sha256": "a" * 64, "bytes": 5}
        assert [t.value for t in inputs["m.gguf"].tags] == ["model"]
