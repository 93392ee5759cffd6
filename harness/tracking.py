"""Logs campaigns to MLflow. The only importer of mlflow, and only when something is logged.

Reads the campaign's directory (through `tracking_data`), writes the tracking store. Logging a
campaign again changes only what differs, so it can be done after each cell, after a resume, or days
later.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from harness.errors import HarnessError
from harness.tracking_data import CampaignData, RunData, read_campaign
from harness.tracking_text import without_credentials

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

    from harness.analysis.tables import Data

T = TypeVar("T")

STORE = "mlflow.db"
ARTIFACTS = "mlartifacts"
DIGEST = "harness.digest"

# What the server takes in one request.
METRICS_PER_REQUEST = 1000
PARAMS_PER_REQUEST = 100

CONNECT_S = 5.0
# MLflow would retry for minutes; a campaign must not wait for a server that is down. A user's own
# setting of one of these is left alone.
_HTTP = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}
# For the whole process, as MLflow's background threads read them too.
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",  # the store's "Creating initial MLflow database tables..."
}


class TrackingError(HarnessError):
    """The tracking store cannot be used; the campaign's directory still has everything."""


def default_uri(runs_dir: Path) -> str:
    """The store beside the campaigns."""
    return f"sqlite:///{runs_dir.resolve() / STORE}"


def log_campaign(
    campaign_dir: Path,
    *,
    uri: str | None,
    runs_dir: Path,
    experiment: str,
) -> str:
    """Log, or bring up to date, the campaign in `campaign_dir`; the id of its parent run.

    `uri`: None for the store in `runs_dir`, or an MLflow tracking URI. Raises TrackingError (store
    unreachable, full, or of another MLflow version; a file of the campaign is damaged).
    """
    try:
        data = read_campaign(campaign_dir)
    except (HarnessError, OSError) as e:
        raise TrackingError(str(e)) from e
    where = uri or default_uri(runs_dir)
    with _environment(), _named(where):
        _check_reachable(where)
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=where)
        experiment_id = _experiment(client, experiment, where, runs_dir)
        return _log(client, experiment_id, data)


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
    except Exception as e:  # mlflow, requests and sqlalchemy share no base class
        first = (str(e).strip().splitlines() or [type(e).__name__])[0]
        raise TrackingError(f"MLflow store {without_credentials(uri)}: {first}") from e


def _check_reachable(uri: str) -> None:
    """A server that does not answer is noticed in seconds."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or parts.hostname is None:
        return
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname, port), timeout=CONNECT_S).close()
    except OSError as e:
        raise TrackingError(
            f"MLflow server {without_credentials(uri)} cannot be reached: {e.strerror or e}"
        ) from e


def _experiment(client: MlflowClient, name: str, uri: str, runs_dir: Path) -> str:
    """The experiment's id; it is created, or restored when it was deleted, as needed."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        local = urlsplit(uri).scheme not in (
            "http",
            "https",
        )  # a server has its own place for files
        location = (runs_dir.resolve() / ARTIFACTS).as_uri() if local else None
        try:
            return str(client.create_experiment(name, artifact_location=location))
        except MlflowException:
            found = client.get_experiment_by_name(name)  # another campaign was faster
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


# --- one campaign --------------------------------------------------------------------------------


def _log(client: MlflowClient, experiment_id: str, data: CampaignData) -> str:
    parent = _find_parent(client, experiment_id, data.campaign)
    if parent is None:
        parent = client.create_run(
            experiment_id,
            start_time=data.parent.start_ms or None,
            tags=data.parent.tags,
            run_name=data.parent.name,
        )
    parent_id = str(parent.info.run_id)
    logged = _logged_cells(client, experiment_id, parent_id)
    for cell in data.cells:
        old = logged.pop(cell.name, [])
        same = [run for run in old if run.data.tags.get(DIGEST) == cell.digest]
        if not same:
            _delete(client, old)
            _log_cell(client, experiment_id, parent_id, cell)
        for run in same:  # what was concluded meanwhile
            for key, value in cell.tags.items():
                if run.data.tags.get(key) != value:
                    client.set_tag(run.info.run_id, key, value)
    for gone in logged.values():  # measured again under another name, or cut short by a crash
        _delete(client, gone)
    _update_parent(client, parent, data)
    return parent_id


def _find_parent(client: MlflowClient, experiment_id: str, campaign: str) -> Run | None:
    quote = '"' if "'" in campaign else "'"  # the query language has both, and no escapes
    query = (
        f"tags.`harness.campaign` = {quote}{campaign}{quote} and tags.`harness.kind` = 'campaign'"
    )
    runs = client.search_runs([experiment_id], query, max_results=1)
    return runs[0] if runs else None


def _logged_cells(client: MlflowClient, experiment_id: str, parent_id: str) -> dict[str, list[Run]]:
    """The cell runs under a parent, by name; more than one of a name only after a crash."""
    found: dict[str, list[Run]] = {}
    token = None
    while True:
        page = client.search_runs(
            [experiment_id], f"tags.`mlflow.parentRunId` = '{parent_id}'", page_token=token
        )
        for run in page:
            found.setdefault(str(run.info.run_name), []).append(run)
        token = page.token
        if not token:
            return found


def _delete(client: MlflowClient, runs: Iterable[Run]) -> None:
    for run in runs:
        client.delete_run(run.info.run_id)


def _log_cell(client: MlflowClient, experiment_id: str, parent_id: str, cell: RunData) -> None:
    """A new run. Its digest comes last: a run without it was not logged to its end."""
    run = client.create_run(
        experiment_id,
        start_time=cell.start_ms or None,
        tags={**cell.tags, "mlflow.parentRunId": parent_id},
        run_name=cell.name,
    )
    run_id = str(run.info.run_id)
    _log_params(client, run_id, cell.params)
    _log_points(client, run_id, cell)
    for file in cell.files:
        client.log_artifact(run_id, str(file))
    client.set_tag(run_id, DIGEST, cell.digest)
    client.set_terminated(run_id, cell.status, end_time=cell.end_ms)


def _update_parent(client: MlflowClient, parent: Run, data: CampaignData) -> None:
    """Only what differs: the store keeps every value of a metric, and refuses to change a param."""
    from mlflow.entities import Metric, RunTag

    run_id, new = str(parent.info.run_id), data.parent
    known = parent.data.params
    _log_params(client, run_id, {k: v for k, v in new.params.items() if k not in known})
    now_ms = round(time.time() * 1e3)
    client.log_batch(
        run_id,
        metrics=[
            Metric(p.key, p.value, now_ms, p.step)
            for p in new.read_points()
            if parent.data.metrics.get(p.key) != p.value
        ],
        tags=[RunTag(k, v) for k, v in new.tags.items() if parent.data.tags.get(k) != v],
    )
    stale = [k for k in parent.data.tags if k.startswith("verdict.") and k not in new.tags]
    for key in stale:
        client.delete_tag(run_id, key)
    for file in new.files:
        client.log_artifact(run_id, str(file))
    for plot in new.plots:
        client.log_artifact(run_id, str(plot), plot.parent.name)
    if data.config_yaml is not None:
        client.log_text(run_id, data.config_yaml, "config.yaml")
    _log_tables(client, parent, data.tables)
    client.set_terminated(run_id, new.status, end_time=new.end_ms or None)


def _log_tables(client: MlflowClient, run: Run, tables: dict[str, Data]) -> None:
    """MLflow appends to a table that is there already, so such a one is written over instead."""
    run_id = str(run.info.run_id)
    there = {str(a.path) for a in client.list_artifacts(run_id)}
    for name, data in tables.items():
        keys = [column.key for column in data.columns]
        if name in there:
            content = {"columns": keys, "data": data.rows}
            client.log_text(run_id, json.dumps(content), name)
        else:
            columns = {key: [row[i] for row in data.rows] for i, key in enumerate(keys)}
            client.log_table(run_id, columns, name)


def _log_params(client: MlflowClient, run_id: str, params: dict[str, str]) -> None:
    from mlflow.entities import Param

    for some in _portions([Param(k, v) for k, v in params.items()], PARAMS_PER_REQUEST):
        client.log_batch(run_id, params=some)


def _log_points(client: MlflowClient, run_id: str, cell: RunData) -> None:
    """Per-token series in as few requests as the store allows."""
    from mlflow.entities import Metric

    metrics = [Metric(p.key, p.value, p.unix_ms, p.step) for p in cell.read_points()]
    for some in _portions(metrics, METRICS_PER_REQUEST):
        client.log_batch(run_id, metrics=some)


def _portions(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    for i in range(0, len(items), most):
        yield items[i : i + most]


# --- is it there? --------------------------------------------------------------------------------


def store_state(uri: str | None, runs_dir: Path) -> str:
    """In words, the store as it is now; nothing is written, and mlflow not imported.

    Raises TrackingError where it cannot be reached, read or made.
    """
    where = uri or default_uri(runs_dir)
    shown, parts = without_credentials(where), urlsplit(where)
    if parts.scheme in ("http", "https"):
        _check_reachable(where)
        return f"{shown} {_answer_of(where)}"
    if parts.scheme != "sqlite":
        return f"{shown}: of this kind it is not tried beforehand"
    # an absolute path has four slashes
    path = Path(unquote(parts.path).removeprefix("/"))
    if not path.exists():
        parent = next(p for p in path.absolute().parents if p.exists())
        if not os.access(parent, os.W_OK | os.X_OK):
            raise TrackingError(f"{shown}: {parent} cannot be written")
        return f"{shown}: not there yet, the first campaign makes it"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as store:
            store.execute("SELECT 1 FROM experiments LIMIT 1")
    except sqlite3.Error as e:
        raise TrackingError(f"{shown}: not a store of MLflow's: {e}") from e
    if not os.access(path, os.W_OK):
        raise TrackingError(f"{shown}: cannot be written")
    return f"{shown}: is there and can be written"


def _answer_of(uri: str) -> str:
    """Whatever a server answers with, it is one; what it lets us do shows when it is logged to."""
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    request = Request(f"{parts.scheme}://{host}{parts.path.rstrip('/')}/health")  # noqa: S310
    try:
        with urlopen(request, timeout=CONNECT_S) as answer:  # noqa: S310 - http or https
            return f"answers (/health: {answer.status})"
    except HTTPError as e:
        if e.code >= 500:
            raise TrackingError(f"MLflow server {without_credentials(uri)} fails: {e}") from e
        return f"answers (/health: {e.code})"
    except OSError as e:
        raise TrackingError(f"MLflow server {without_credentials(uri)} does not answer: {e}") from e
