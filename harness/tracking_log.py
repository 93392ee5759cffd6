"""Brings one campaign in the store up to date: cells, then their parent. Knows no MLflow.

Is given MLflow's client and entities by `tracking`. Only what differs is written, in an order in
which whatever is cut off in between is seen to be incomplete, and completed the next time.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import rundir
from harness.tracking_cells import Point
from harness.tracking_data import LAYOUT, CampaignData, RunData
from harness.tracking_inputs import Input
from harness.tracking_runs import Client, delete, settle_sweep
from harness.tracking_text import PARENT

if TYPE_CHECKING:
    from harness.analysis.tables import Data

DIGEST = "harness.digest"  # of what was logged, to its end
BEGUN = "harness.begun"  # of what was begun to be logged

# Files of a campaign that are whole before its first cell.
_FROM_THE_START = (rundir.PLAN, rundir.ENVIRONMENT, rundir.SWEEP)

# What the server takes in one request: parameters, and those with metrics and tags together.
PARAMS_PER_REQUEST = 100
ENTITIES_PER_REQUEST = 1000
DATASET_DIGEST_CHARS = 36


class Logged:
    """A run as it is in the store."""

    def __init__(self, run: Any) -> None:
        """`run`: as MLflow's client gives it."""
        self.run_id = str(run.info.run_id)
        self.status = str(run.info.status)
        self.start_ms = run.info.start_time or 0
        self.end_ms = run.info.end_time
        self.params = dict(run.data.params)
        self.tags = dict(run.data.tags)
        self.metrics = dict(run.data.metrics)


@dataclass
class Known:
    """What is in the store of one campaign.

    `entities`: the module of MLflow. `tags`: of the parent, beside those of the data. `files`:
    hashes of those of the parent that this process has logged. `swept`: the run of the campaign's
    sweep says that it runs.
    """

    client: Client
    entities: Any
    experiment_id: str
    parent: Logged
    cells: dict[str, list[Logged]]
    tags: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)
    swept: bool = False


# --- one cell ------------------------------------------------------------------------------------


def sync_cell(known: Known, cell: RunData, in_time: Callable[[], None]) -> None:
    """One run of the cell as it is on disk, whole; whatever else has its name goes."""
    runs = known.cells.get(cell.name, [])
    whole = [run for run in runs if run.tags.get(DIGEST) == cell.digest]
    begun = [run for run in runs if run.tags.get(BEGUN) == cell.digest]
    keep = next(iter(whole or begun), None)
    for run in runs:
        if run is not keep:  # measured again, or made twice
            delete(known.client, run.run_id)
    if not whole:
        known.cells[cell.name] = []
        keep = _log_cell(known, cell, keep, in_time)
    assert keep is not None  # noqa: S101
    known.cells[cell.name] = [keep]
    if keep.tags.get(PARENT) != known.parent.run_id:
        _set_tags(known, keep, {PARENT: known.parent.run_id})
    _set_tags(known, keep, cell.tags)  # what was concluded meanwhile


def drop(known: Known, names: set[str]) -> None:
    """Runs of cells that are not there any more: cut short, or measured under another name."""
    for name in known.cells.keys() - names:
        for run in known.cells.pop(name):
            delete(known.client, run.run_id)


def _log_cell(
    known: Known, cell: RunData, begun: Logged | None, in_time: Callable[[], None]
) -> Logged:
    """Its digest comes last: a run without it was not logged to its end, and is completed later.

    What is there already is written once more, which changes nothing.
    """
    client = known.client
    in_time()
    tags = {**cell.tags, PARENT: known.parent.run_id, BEGUN: cell.digest}
    run = begun or Logged(
        client.create_run(
            known.experiment_id,
            start_time=cell.start_ms or None,
            tags=tags,
            run_name=cell.name,
        )
    )
    steps: list[Callable[[], object]] = [
        lambda: _log_inputs(known, run.run_id, cell.inputs),
        *(
            partial(client.log_batch, run.run_id, **some)
            for some in _batches(known.entities, cell.params, cell.read_points())
        ),
        lambda: _log_files(client, run.run_id, {p.name: p for p in cell.files}),
        lambda: client.set_terminated(run.run_id, cell.status, end_time=cell.end_ms),
        lambda: _set_tags(known, run, {DIGEST: cell.digest}),
    ]
    for step in steps:
        in_time()
        step()
    return run


def _batches(
    entities: Any, params: Mapping[str, str], points: Iterable[Point]
) -> Iterator[dict[str, Any]]:
    """In as few requests as the store allows."""
    names = [entities.Param(k, v) for k, v in params.items()]
    metrics = [entities.Metric(p.key, p.value, p.unix_ms, p.step) for p in points]
    while names or metrics:
        some = names[:PARAMS_PER_REQUEST]
        room = ENTITIES_PER_REQUEST - len(some)
        yield {"params": some, "metrics": metrics[:room]}
        names, metrics = names[len(some) :], metrics[room:]


def _log_inputs(known: Known, run_id: str, inputs: Iterable[Input]) -> None:
    entities = known.entities
    known.client.log_inputs(
        run_id,
        [
            entities.DatasetInput(
                entities.Dataset(
                    name=i.name,
                    digest=i.sha256[:DATASET_DIGEST_CHARS],
                    source_type="local",
                    source=json.dumps({"uri": i.path} if i.path else {}),
                    profile=json.dumps({"sha256": i.sha256, **i.profile}),
                ),
                [entities.InputTag("mlflow.data.context", i.context)],
            )
            for i in inputs
        ],
    )


def _log_files(client: Client, run_id: str, files: Mapping[str, Path | str]) -> None:
    """In one call. `files`, or their text, by their names in the store."""
    if not files:
        return
    with tempfile.TemporaryDirectory(prefix="moe-harness-") as staging:
        for name, content in files.items():
            place = Path(staging) / name
            place.parent.mkdir(exist_ok=True)
            if isinstance(content, str):
                place.write_text(content, encoding="utf-8")
            else:
                place.symlink_to(content.resolve())
        client.log_artifacts(run_id, staging)


def _set_tags(known: Known, run: Logged, tags: Mapping[str, str]) -> None:
    new = {k: v for k, v in tags.items() if run.tags.get(k) != v}
    if new:
        known.client.log_batch(
            run.run_id, tags=[known.entities.RunTag(k, v) for k, v in new.items()]
        )
        run.tags |= new


# --- the parent ----------------------------------------------------------------------------------


def sync_parent(known: Known, data: CampaignData) -> None:
    """Only what differs: the store keeps every value of a metric, and refuses to change a param."""
    client, parent, new = known.client, known.parent, data.parent
    running = new.status == "RUNNING"
    if running and parent.status != "RUNNING":
        client.update_run(parent.run_id, status="RUNNING")
        parent.status = "RUNNING"
    fresh = {k: v for k, v in new.params.items() if k not in parent.params}
    now_ms = round(time.time() * 1e3)  # of two values for one step the store shows the later one
    found = list(new.read_points())
    # a metric cannot be taken back: what is no longer concluded is not a number
    gone = {k for k, v in parent.metrics.items() if not math.isnan(v)} - {p.key for p in found}
    points = [
        replace(p, unix_ms=now_ms if p.key in parent.metrics else p.unix_ms)
        for p in found
        if parent.metrics.get(p.key) != p.value
    ] + [Point(key, math.nan, now_ms, 0) for key in sorted(gone)]
    for some in _batches(known.entities, fresh, points):
        client.log_batch(parent.run_id, **some)
    parent.params |= fresh
    parent.metrics |= {p.key: p.value for p in points}
    _set_tags(known, parent, {**new.tags, **known.tags})
    for key in [k for k in parent.tags if k.startswith("verdict.") and k not in new.tags]:
        client.delete_tag(parent.run_id, key)
        del parent.tags[key]
    _sync_files(known, data, whole=not running)
    if not running:
        end_ms = max(new.end_ms, parent.start_ms) if new.end_ms else None
        if parent.status != new.status or parent.end_ms != (end_ms or parent.end_ms):
            client.set_terminated(parent.run_id, new.status, end_time=end_ms)
    if data.sweep is not None and (not running or not known.swept):
        settle_sweep(client, known.experiment_id, data.sweep.id)
        known.swept = True


def _sync_files(known: Known, data: CampaignData, *, whole: bool) -> None:
    """What is not there as it is here. `whole`: also what grows until the campaign has ended."""
    client, parent = known.client, known.parent
    files: dict[str, Path | str] = {
        p.name: p for p in data.parent.files if whole or p.name in _FROM_THE_START
    }
    if whole:
        files |= {f"{plot.parent.name}/{plot.name}": plot for plot in data.parent.plots}
    if data.config_yaml is not None:
        files[rundir.CONFIG] = data.config_yaml
    tables = {name: _as_json(table) for name, table in data.tables.items()}
    hashes = {name: _hash(content) for name, content in {**files, **tables}.items()}
    digest = _hash(json.dumps([LAYOUT, sorted(hashes.items())]))
    if whole and parent.tags.get(DIGEST) == digest:
        return
    new = {name for name, found in hashes.items() if known.files.get(name) != found}
    if not known.files:
        _log_inputs(known, parent.run_id, data.parent.inputs)
    _log_files(client, parent.run_id, {n: f for n, f in files.items() if n in new})
    _log_tables(client, parent.run_id, {n: t for n, t in data.tables.items() if n in new})
    known.files |= hashes
    if whole:
        _set_tags(known, parent, {DIGEST: digest})


def _log_tables(client: Client, run_id: str, tables: Mapping[str, Data]) -> None:
    """MLflow appends to a table that is there already, so such a one is written over instead."""
    there = {str(a.path) for a in client.list_artifacts(run_id)} if tables else set()
    for name, data in tables.items():
        if name in there:
            client.log_text(run_id, _as_json(data), name)
        else:
            keys = [column.key for column in data.columns]
            columns = {key: [row[i] for row in data.rows] for i, key in enumerate(keys)}
            client.log_table(run_id, columns, name)


def _as_json(table: Data) -> str:
    """As MLflow writes a table."""
    return json.dumps({"columns": [column.key for column in table.columns], "data": table.rows})


def _hash(content: Path | str) -> str:
    data = content.encode() if isinstance(content, str) else content.read_bytes()
    return hashlib.sha256(data).hexdigest()
