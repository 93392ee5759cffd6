"""Runs in the store, found by their tags: one of each, below the right one, in the right state.

Is given MLflow's client, and imports nothing of it. Several processes may do all this at once, and
come to the same: whoever sees two of what there is to be one keeps the same one.
"""

from __future__ import annotations

import fcntl
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import rundir
from harness.journal import is_running
from harness.tracking_store import TrackingError
from harness.tracking_text import (
    CAMPAIGN,
    KIND,
    NOTE,
    OVERRIDES,
    PARENT,
    SWEEP,
    SWEEP_COUNT,
    SWEEP_INDEX,
    TAG_CHARS,
    cut,
)

# mlflow.MlflowClient, of which only `tracking` may know more
Client = Any

# of a campaign that runs: who is to say whether it still does
HOST, DIRECTORY = "harness.host", "harness.directory"
STILL_RUNNING = "attributes.status = 'RUNNING'"
# For another process that logs the same campaign; it is seldom more than a moment.
ALONE_S = 20.0
# of one that writes what follows from others' runs, while these change
SETTLE_ATTEMPTS = 10

_MACHINE_ID = Path("/etc/machine-id")


def this_host() -> str:
    """This machine's name, and what tells it from others that are called the same."""
    try:
        machine_id = _MACHINE_ID.read_text().strip()
    except OSError:
        machine_id = ""
    return f"{platform.node()} {machine_id[:12]}".strip()


@contextmanager
def alone(campaign_dir: Path) -> Iterator[None]:
    """One process at a time logs a campaign: two would both make the run that is not there yet."""
    path = next(
        (p for n in (rundir.CONFIG, rundir.PLAN) if (p := campaign_dir / n).is_file()), None
    )
    if path is None:
        yield
        return
    with path.open("rb") as held:
        until = time.monotonic() + ALONE_S
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TrackingError(
                        f"{campaign_dir}: another process is logging it; try again when it is done"
                    ) from None
            except OSError:  # a file system without locks
                break
            time.sleep(0.1)
        yield


def quoted(text: str) -> str:
    """As the store's query language takes it: it has both quotes, and no escapes."""
    quote = '"' if "'" in text else "'"
    return f"{quote}{text}{quote}"


def search(
    client: Client, experiment_ids: list[str], tags: Mapping[str, str], more: str = ""
) -> Iterator[Any]:
    """The runs, but for deleted ones, with these tags."""
    conditions = [f"tags.`{k}` = {quoted(v)}" for k, v in tags.items()]
    query = " and ".join([*conditions, more] if more else conditions)
    token = None
    while experiment_ids:
        page = client.search_runs(experiment_ids, query, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def only_one(
    client: Client, experiment_id: str, tags: Mapping[str, str], create: Callable[[], Any]
) -> Any:
    """The run with these tags, made where there is none.

    Two who make it at once both see both, or the later one does: the older stays, for everyone, and
    takes over what hangs below the other.
    """
    found = list(search(client, [experiment_id], tags))
    if not found:
        create()
        found = list(search(client, [experiment_id], tags))
    keep, *others = sorted(found, key=lambda run: (run.info.start_time or 0, run.info.run_id))
    for other in others:
        for child in list(search(client, [experiment_id], {PARENT: other.info.run_id})):
            with _unless_deleted(client, child.info.run_id):
                client.set_tag(child.info.run_id, PARENT, keep.info.run_id)
        delete(client, other.info.run_id)
    return keep


def delete(client: Client, run_id: str) -> None:
    """A run that another process has just deleted is as good."""
    with _unless_deleted(client, run_id):
        client.delete_run(run_id)


@contextmanager
def _unless_deleted(client: Client, run_id: str) -> Iterator[None]:
    """A run that another process has deleted since it was found takes no change, and needs none."""
    try:
        yield
    except Exception:
        if client.get_run(run_id).info.lifecycle_stage != "deleted":
            raise


# --- the state of what has ended -----------------------------------------------------------------


def stop_dead(client: Client, besides: str = "") -> list[str]:
    """KILLED is what is said to run on this machine, and does not; the names of these campaigns.

    Only where its directory is here, and no living harness holds its journal. Nobody else can know.
    """
    ids = _experiment_ids(client)
    mine = {KIND: "campaign", HOST: this_host()}
    dead = []
    for run in list(search(client, ids, mine, STILL_RUNNING)):  # pages shift while runs end
        tags = run.data.tags
        name, directory = tags.get(CAMPAIGN, ""), Path(tags.get(DIRECTORY, "/nowhere"))
        if name == besides or directory.name != name or not directory.is_dir():
            continue
        if is_running(directory):
            continue
        below = {PARENT: run.info.run_id}
        for child in list(search(client, [run.info.experiment_id], below, STILL_RUNNING)):
            client.set_terminated(child.info.run_id, "KILLED")
        note = f"**killed**: the harness that ran it is gone\n\n{tags.get(NOTE, '')}"
        client.set_tag(run.info.run_id, NOTE, cut(note, TAG_CHARS))
        client.set_terminated(run.info.run_id, "KILLED")
        if SWEEP in tags:
            settle_sweep(client, run.info.experiment_id, tags[SWEEP])
        dead.append(name)
    return dead


def _experiment_ids(client: Client) -> list[str]:
    ids: list[str] = []
    token = None
    while True:
        page = client.search_experiments(page_token=token)
        ids += [str(e.experiment_id) for e in page]
        token = page.token
        if not token:
            return ids


def settle_sweep(client: Client, experiment_id: str, sweep: str) -> None:
    """State and note of a sweep's run follow from those of its campaigns.

    While campaigns are still to come it runs, unless the last one was interrupted. Several that end
    at once each write what they have just read; so who writes looks again, and the last of them
    finds, after what it wrote, all that there is.
    """
    campaigns = list(search(client, [experiment_id], {SWEEP: sweep, KIND: "campaign"}))
    for _ in range(SETTLE_ATTEMPTS):
        status, note = _summary(campaigns)
        for run in search(client, [experiment_id], {SWEEP: sweep, KIND: "sweep"}):
            with _unless_deleted(client, run.info.run_id):
                client.set_tag(run.info.run_id, NOTE, note)
                if status == "RUNNING":
                    client.update_run(run.info.run_id, status=status)
                elif run.info.status != status:
                    client.set_terminated(run.info.run_id, status)
        campaigns = list(search(client, [experiment_id], {SWEEP: sweep, KIND: "campaign"}))
        if _summary(campaigns) == (status, note):
            return


def _summary(campaigns: list[Any]) -> tuple[str, str]:
    """State and note of a sweep of these campaigns' runs."""
    campaigns = sorted(campaigns, key=lambda c: int(c.data.tags.get(SWEEP_INDEX, "0")))
    states = [str(c.info.status) for c in campaigns]
    whole = len(campaigns) >= max(
        (int(c.data.tags.get(SWEEP_COUNT, "1")) for c in campaigns), default=1
    )
    lines = [
        f"- `{c.data.tags.get(OVERRIDES) or c.data.tags.get(CAMPAIGN)}`: "
        f"{c.data.tags.get(NOTE, '').partition(chr(10))[0].strip('*') or c.info.status.lower()}"
        for c in campaigns
    ]
    return _state_of(states, whole), cut("\n".join(lines), TAG_CHARS)


def _state_of(states: list[str], whole: bool) -> str:
    if "RUNNING" in states:
        return "RUNNING"
    for bad in ("KILLED", "FAILED"):
        if bad in states and (whole or bad == "KILLED"):
            return bad
    return "FINISHED" if whole else "RUNNING"
