"""What another process does to the same store between two requests of ours."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tracking_parts import (
    EXPERIMENT,
    assert_whole,
    parent_of,
    write_campaign,
    write_journal,
    write_journal_again,
)

from harness import tracking
from harness.journal import Journal, write_json
from harness.rundir import SWEEP, Sweep
from harness.tracking import CampaignLog, log_campaign
from harness.tracking_client import ATTEMPTS
from harness.tracking_process import LoggingProcess
from harness.tracking_runs import settle_sweep
from harness.tracking_store import TrackingError, default_uri
from harness.tracking_worker import Request

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ID = "20261130T100000Z-io-0001"


class Interrupted:
    """A client before whose next request of one kind somebody else acts, once."""

    def __init__(self, client: Any, request: str, act: Callable[[], None]) -> None:
        self._client = client
        self._request = request
        self._act: Callable[[], None] | None = act

    def __getattr__(self, name: str) -> Any:
        if name == self._request and self._act is not None:
            act, self._act = self._act, None
            act()
        return getattr(self._client, name)


def client_of(runs: Path) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(default_uri(runs))


def member(runs: Path, index: int) -> Path:
    """A stored campaign, the `index`th of a sweep of two."""
    directory = write_campaign(runs, f"20261130T10000{index}Z-io-000{index}")
    write_json(directory / SWEEP, Sweep(ID, "io", index, 2, (f"cell.n_predict={index}",)))
    return directory


def sweeps(client: Any, experiment_id: str) -> list[Any]:
    query = f"tags.`harness.sweep` = '{ID}' and tags.`harness.kind` = 'sweep'"
    return list(client.search_runs([experiment_id], query))


def add_sweep(client: Any, experiment_id: str, start_ms: int) -> Any:
    tags = {"harness.sweep": ID, "harness.kind": "sweep"}
    return client.create_run(experiment_id, start_time=start_ms, tags=tags)


def log(directory: Path) -> Any:
    """Its run, once it is logged."""
    runs = directory.parent
    log_campaign(directory, uri=None, runs_dir=runs, experiment=EXPERIMENT)
    return parent_of(default_uri(runs), directory.name)


def test_a_sweep_s_second_run_goes_while_its_state_is_written(runs: Path) -> None:
    client = client_of(runs)
    experiment_id = log(member(runs, 0)).info.experiment_id
    (kept,) = sweeps(client, experiment_id)
    second = add_sweep(client, experiment_id, kept.info.start_time - 1000)
    asked = Interrupted(client, "set_tag", lambda: client.delete_run(second.info.run_id))
    client.search_runs = newest_last(client.search_runs, second.info.run_id)
    settle_sweep(asked, experiment_id, ID)
    assert [run.info.run_id for run in sweeps(client, experiment_id)] == [kept.info.run_id]


def newest_last(search: Callable[..., Any], first: str) -> Callable[..., Any]:
    """The order in which a store gives runs is its own: here the run `first` comes first."""

    def sorted_search(*args: Any, **kwargs: Any) -> Any:
        found = search(*args, **kwargs)
        found.sort(key=lambda run: run.info.run_id != first)
        return found

    return sorted_search


def test_a_store_that_fails_is_not_taken_for_a_run_that_is_gone(runs: Path) -> None:
    client = client_of(runs)
    experiment_id = log(member(runs, 0)).info.experiment_id

    def fail() -> None:
        raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"):
        settle_sweep(Interrupted(client, "set_tag", fail), experiment_id, ID)


def test_a_campaign_that_ends_while_a_sweep_s_state_is_written_counts(runs: Path) -> None:
    client = client_of(runs)
    log(member(runs, 0))
    last = member(runs, 1)
    finished = (last / "journal.jsonl").read_bytes()
    verdict = (last / "verdict.json").read_bytes()
    (last / "verdict.json").unlink()
    write_journal(last)
    CampaignLog(last, uri=None, runs_dir=runs, experiment=EXPERIMENT).sync(running=True)
    experiment_id = parent_of(default_uri(runs), last.name).info.experiment_id

    def end() -> None:
        (last / "journal.jsonl").write_bytes(finished)
        (last / "verdict.json").write_bytes(verdict)
        log(last)
        (sweep,) = sweeps(client, experiment_id)
        assert sweep.info.status == "FINISHED"

    settle_sweep(Interrupted(client, "set_tag", end), experiment_id, ID)
    (sweep,) = sweeps(client, experiment_id)
    assert sweep.info.status == "FINISHED"


@pytest.mark.parametrize("times", [1, 100])
def test_a_row_that_another_writes_at_the_same_moment_is_written_again(
    runs: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """As PostgreSQL refused the dataset of their model to one of four campaigns."""
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    log_inputs = MlflowClient.log_inputs
    refused = []

    def race(*args: Any) -> None:
        if len(refused) < times:
            refused.append(args)
            raise MlflowException(
                "(psycopg2.errors.UniqueViolation) duplicate key value violates unique "
                'constraint "dataset_pk"'
            )
        log_inputs(*args)

    monkeypatch.setattr(MlflowClient, "log_inputs", race)
    directory = member(runs, 0)
    if times == 1:
        log(directory)
        assert_whole(default_uri(runs), directory)
    else:
        with pytest.raises(TrackingError, match="UniqueViolation"):
            log(directory)
    assert len(refused) == min(times, ATTEMPTS)


def test_a_sweep_s_run_that_gives_way_to_another_takes_no_campaign_with_it(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older one shows up, and ours is gone, before our campaign hangs below anything."""
    from mlflow.tracking import MlflowClient

    create = MlflowClient.create_run
    older = []

    def create_run(client: Any, experiment_id: str, *args: Any, **kwargs: Any) -> Any:
        if kwargs["tags"]["harness.kind"] == "campaign" and not older:
            (ours,) = sweeps(client, experiment_id)
            tags = {"harness.sweep": ID, "harness.kind": "sweep"}
            older.append(create(client, experiment_id, start_time=1, tags=tags).info.run_id)
            client.delete_run(ours.info.run_id)
        return create(client, experiment_id, *args, **kwargs)

    monkeypatch.setattr(MlflowClient, "create_run", create_run)
    parent = log(member(runs, 0))
    (left,) = sweeps(client_of(runs), parent.info.experiment_id)
    assert [left.info.run_id] == older
    assert parent.data.tags["mlflow.parentRunId"] == left.info.run_id


def test_a_harness_whose_pipe_is_closed_before_its_journal_is_marked_killed(runs: Path) -> None:
    """In that order, on a busy machine, the kernel takes from a killed process what it holds."""
    directory = write_campaign(runs)
    shutil.rmtree(directory / "cells" / "02-sentinel")
    (directory / "verdict.json").unlink()
    write_journal(directory)
    process = LoggingProcess()
    with contextlib.closing(process):
        with Journal.open(directory):
            process.ask(
                Request(str(directory), None, str(runs), EXPERIMENT, 100, 20, True), at_most_s=100
            )
            assert parent_of(default_uri(runs), directory.name).info.status == "RUNNING"
            worker = process._process
            assert worker is not None and worker.stdin is not None
            worker.stdin.close()
            # it waits for three seconds: what takes longer than this here has no time
            threading.Event().wait(0.5)
            assert worker.poll() is None, "it did not wait"
        # before it is told to hurry
        assert worker.wait(120) == 0
    assert parent_of(default_uri(runs), directory.name).info.status == "KILLED"


def test_what_another_logged_while_one_waited_is_not_taken_back(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that logs for a harness that was killed, and the one of its resume."""
    directory = write_campaign(runs)
    write_journal(directory)
    last = directory / "cells" / "02-sentinel"
    aside = last.rename(directory / "sentinel")
    write_journal_again(directory)
    alone = tracking.alone

    @contextlib.contextmanager
    def late(campaign_dir: Path) -> Iterator[None]:
        with alone(campaign_dir):
            if aside.exists():
                aside.rename(last)
                write_journal(directory, "campaign_resumed", "campaign_finished")
            yield

    monkeypatch.setattr(tracking, "alone", late)
    log(directory)
    assert_whole(default_uri(runs), directory)
