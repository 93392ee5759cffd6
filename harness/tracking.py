"""Logs campaigns to MLflow. The only importer of mlflow, and only when something is logged.

Reads the campaign's directory (through `tracking_data`), writes the tracking store. Logging a
campaign again changes only what differs, so it is done after each cell, after a resume, or days
later. Runs are found by their tags, never by a number that somebody would have to keep: whatever
was cut off on the way, by a store that went away or a process that was killed, is found and
completed the next time.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.tracking_client import SharedClient
from harness.tracking_data import CampaignData, read_campaign
from harness.tracking_log import Known, Logged, drop, sync_cell, sync_parent
from harness.tracking_runs import (
    DIRECTORY,
    HOST,
    alone,
    only_one,
    search,
    stop_dead,
    this_host,
)
from harness.tracking_store import (
    ARTIFACTS,
    TrackingError,
    check_answers,
    check_path,
    default_uri,
    is_server,
    scrubbed,
)
from harness.tracking_text import CAMPAIGN, KIND, PARENT, SWEEP, without_credentials

if TYPE_CHECKING:
    from harness.rundir import Sweep

ANSWER_S = 10.0  # so long may a server take to say that it is well

DATABASE_ATTEMPTS = 3  # to connect, 0.4 s

# What is a user's own setting is left alone.
_HTTP = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    # A request that is sent again when its answer is late makes a second run. What did not succeed
    # is found out, and made good, by looking what is there.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
}
# For the whole process, as MLflow's background threads read them too.
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",  # the store's "Creating initial MLflow database tables..."
    "PGCONNECT_TIMEOUT": "5",
}

__all__ = ["CampaignLog", "TrackingError", "default_uri", "log_campaign", "mark_killed"]


class OutOfTimeError(TrackingError):
    """Not everything was logged yet; what was is in the store."""


def log_campaign(campaign_dir: Path, *, uri: str | None, runs_dir: Path, experiment: str) -> str:
    """Log, or bring up to date, the campaign in `campaign_dir`; the id of its parent run.

    `uri`: None for the store in `runs_dir`, or an MLflow tracking URI. Raises TrackingError (store
    unreachable, full, or of another MLflow version; a file of the campaign is damaged).
    """
    log = CampaignLog(campaign_dir, uri=uri, runs_dir=runs_dir, experiment=experiment)
    return log.sync()


def mark_killed(uri: str | None, runs_dir: Path) -> list[str]:
    """Mark campaigns of this machine that are said to run, and do not: KILLED; their names.

    Raises TrackingError.
    """
    where = uri or default_uri(runs_dir)
    with _environment(), _named(where):
        check_answers(where, ANSWER_S)
        return stop_dead(_client(where))


class CampaignLog:
    """One campaign in one store. Remembers what is there, so that a cell costs few requests."""

    def __init__(
        self, campaign_dir: Path, *, uri: str | None, runs_dir: Path, experiment: str
    ) -> None:
        """Touches nothing. For the arguments see `log_campaign`."""
        self.campaign_dir = campaign_dir
        self.where = uri or default_uri(runs_dir)
        self._runs_dir = runs_dir
        self._experiment = experiment
        self._known: Known | None = None

    def sync(
        self,
        *,
        running: bool = False,
        standing: str | None = None,
        in_time: Callable[[], None] = lambda: None,
        on_cell: Callable[[], None] = lambda: None,
        answer_s: float = ANSWER_S,
    ) -> str:
        """Bring the store up to date; the id of the parent run.

        `running`: the campaign is under way, and `standing` is what can be said so far; else it is
        logged to its end. `in_time`: asked before each request of a cell, raises when there is no
        time left. `answer_s`: in which a server says that it is well. Raises TrackingError.
        """
        known, self._known = self._known, None  # whatever fails, the store is asked next time
        with _environment(), _named(self.where), alone(self.campaign_dir):
            # not before: whoever logged it meanwhile knew more, which would be taken back
            data = self._read(running=running, standing=standing)
            check_answers(self.where, answer_s)
            if known is None or not running:
                known = self._ask(data)
            for cell in data.cells:
                sync_cell(known, cell, in_time)
                on_cell()
            drop(known, {cell.name for cell in data.cells})
            sync_parent(known, data)
        self._known = known
        return known.parent.run_id

    def _read(self, *, running: bool, standing: str | None) -> CampaignData:
        try:
            return read_campaign(self.campaign_dir, running=running, standing=standing)
        except (HarnessError, OSError) as e:
            raise TrackingError(str(e)) from e

    def _ask(self, data: CampaignData) -> Known:
        """What is in the store, or is made there: the campaign's run, and its cells."""
        from mlflow import entities

        client = _client(self.where)
        experiment_id = _experiment_id(client, self._experiment, self.where, self._runs_dir)
        stop_dead(client, besides=data.campaign)
        tags = {**data.parent.tags, **_below(client, experiment_id, data.sweep)}
        if data.parent.status == "RUNNING":
            tags |= {HOST: this_host(), DIRECTORY: str(self.campaign_dir.resolve())}
        parent = only_one(
            client,
            experiment_id,
            {k: tags[k] for k in (CAMPAIGN, KIND)},
            lambda: client.create_run(
                experiment_id,
                start_time=data.parent.start_ms or None,
                tags=tags,
                run_name=data.parent.name,
            ),
        )
        # Two that start a sweep at once each make its run. The one that goes may have gone before
        # ours hung below it, so that nobody moved ours.
        tags |= _below(client, experiment_id, data.sweep)
        cells: dict[str, list[Logged]] = {}
        for run in search(client, [experiment_id], {PARENT: parent.info.run_id}):
            cells.setdefault(str(run.info.run_name), []).append(Logged(run))
        return Known(client, entities, experiment_id, Logged(parent), cells, tags)


# --- the store -----------------------------------------------------------------------------------


@contextmanager
def _environment() -> Iterator[None]:
    """MLflow is configured by environment variables: ours apply where the user set none."""
    for key, value in _QUIET.items():
        os.environ.setdefault(key, value)
    ours = {k: v for k, v in _HTTP.items() if k not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for key in ours:
            os.environ.pop(key, None)


@contextmanager
def _named(uri: str) -> Iterator[None]:
    """Whatever the store's libraries raise becomes one line that names the store."""
    try:
        yield
    except HarnessError:
        raise
    except ModuleNotFoundError as e:
        raise TrackingError(
            f"MLflow store {without_credentials(uri)}: {e.name} is not installed; install it, or "
            "name a driver that is (postgresql+psycopg2://...)"
        ) from None
    except Exception as e:  # mlflow, requests and sqlalchemy share no base class
        # SQLAlchemy says first when it noticed, and then what
        lines = [x for x in str(e).strip().splitlines() if not x.startswith("(raised as a result")]
        first = (lines or [type(e).__name__])[0]
        raise TrackingError(scrubbed(f"MLflow store {uri}: {first}", uri)) from None


def _client(uri: str) -> SharedClient:
    check_path(uri)
    if uri.startswith("sqlite:///"):
        _make_sqlite(Path(uri.removeprefix("sqlite:///")))
    if not is_server(uri):
        from mlflow.store.db import utils

        # MLflow would ask a database ten times, over 100 s, whatever it answers: a wrong password
        utils.MAX_RETRY_COUNT = DATABASE_ATTEMPTS
    from mlflow.tracking import MlflowClient

    return SharedClient(MlflowClient(tracking_uri=uri))


def _make_sqlite(path: Path) -> None:
    """A store whole or not at all, and by one process only.

    Its tables take seconds to make, and a process that is killed, or another one that comes upon
    them half made, would leave a store that nobody can open.
    """
    if path.exists() or not path.parent.is_dir() or "?" in path.name:
        return
    from mlflow.tracking import MlflowClient

    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as temporary:
        made = Path(temporary) / path.name
        MlflowClient(tracking_uri=f"sqlite:///{made}").search_experiments(max_results=1)
        try:
            os.link(made, path)
        except FileExistsError:  # another one was faster
            return
        except OSError:  # a file system without links
            made.rename(path)


def _below(client: SharedClient, experiment_id: str, sweep: Sweep | None) -> dict[str, str]:
    """The tag that hangs a campaign's run below the one of its sweep, which is made as needed."""
    if sweep is None:
        return {}
    own = {SWEEP: sweep.id, KIND: "sweep"}
    name = f"sweep {sweep.name} {sweep.id}"
    found = only_one(
        client,
        experiment_id,
        own,
        lambda: client.create_run(experiment_id, tags=own, run_name=name),
    )
    return {PARENT: str(found.info.run_id)}


def _experiment_id(client: SharedClient, name: str, uri: str, runs_dir: Path) -> str:
    """The experiment's id; it is created, or restored when it was deleted, as needed."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        # a server has its own place for files
        location = None if is_server(uri) else (runs_dir.resolve() / ARTIFACTS).as_uri()
        try:
            return str(client.create_experiment(name, artifact_location=location))
        except MlflowException:
            found = client.get_experiment_by_name(name)  # another campaign was faster
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)
