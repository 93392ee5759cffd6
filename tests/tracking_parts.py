"""Campaigns as a session leaves them, for the tracking store; what is in a store; real servers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ports import free_port

from harness import rundir
from harness.journal import JOURNAL, RECORD, read_journal, write_json
from harness.jsonable import from_json
from harness.planned import Arm, EngineSettings, Plan, PlannedCell
from harness.readings import ProbeResult, Probes
from harness.records import ArmIdentity, CellRecord, Counters, Metrics, TargetId, Wait
from harness.verdicts import CampaignVerdict, CandidateVerdict, Drift

TOKENS = 128
EXPERIMENT = "matched_pair"
START_S = 1.79e9
COLUMNS = (
    "token,wall_ms,io_ms,compute_ms,stall_ms,manage_ms,read_bytes,requests,hits,misses,"
    "evictions,majflt,minflt,cpu_ms,invol_ctx"
)
CONFIG = """\
name: matched_pair
cell: {prompt: "%s"}
tracking: {uri: "http://user:hunter2@tracking.example/x"}
target: {kind: local, password: hunter2, key_file: /home/me/.ssh/id}
"""


def write_campaign(runs: Path, name: str = "20261129T200000Z-matched_pair-0001") -> Path:
    """A campaign of three cells, as a session leaves it; its numbers follow from its tokens."""
    directory = runs / name
    order = [("baseline", "baseline"), ("candidate", "cache_half"), ("sentinel", "sentinel")]
    settings = EngineSettings(threads=1, n_ctx=512, n_batch=128, moe_stream=True, cache_mb=40)
    plan = Plan(
        design="four_cell",
        arms={a: Arm(a, settings, "In the beginning", TOKENS) for a in ("baseline", "cache_half")},
        cells=tuple(
            PlannedCell(i, cell, "cache_half" if role == "candidate" else "baseline", role, 30.0)  # type: ignore[arg-type]
            for i, (role, cell) in enumerate(order)
        ),
        baseline="baseline",
        candidates=("cache_half",),
    )
    directory.mkdir(parents=True)
    (directory / rundir.CONFIG).write_text(CONFIG % ("long " * 2000))
    write_json(directory / rundir.PLAN, plan)
    write_json(directory / rundir.ENVIRONMENT, {"kernel": "6.1", "cpu": {"logical": 2}})
    for planned in plan.cells:
        write_cell(directory, planned)
    write_verdict(directory, "inconclusive", -4.0)
    write_journal(directory, "campaign_finished")
    return directory


def write_another_cell(directory: Path, index: int, tokens: int = TOKENS) -> None:
    """One more of the baseline."""
    write_cell(directory, PlannedCell(index, f"again{index}", "baseline", "baseline", 0.0), tokens)
    write_journal_again(directory)


def write_cell(directory: Path, planned: PlannedCell, tokens: int = TOKENS) -> None:
    cell_dir = directory / "cells" / f"{planned.index:02d}-{planned.name}"
    cell_dir.mkdir(parents=True)
    rows = [
        f"{i},{100 + 20 * math.sin(i + planned.index):.3f},9.5,80,5,1,{1000 * (i % 3)},32,"
        f"{20 + i % 5},{12 - i % 5},{i % 2},0,3,90,1"
        for i in range(tokens)
    ]
    walls = [float(r.split(",")[1]) for r in rows]
    hits = sum(20 + i % 5 for i in range(tokens))
    read = sum(1000 * (i % 3) for i in range(tokens))
    (cell_dir / "tokens.csv").write_text("\n".join([COLUMNS, *rows]) + "\n")
    (cell_dir / "stdout.txt").write_text("In the beginning")
    record = CellRecord(
        cell=planned.name,
        arm=planned.arm,
        role=planned.role,
        index=planned.index,
        status="ok",
        exit_code=0,
        argv=("moe-engine", "-m", "m.gguf"),
        target=TargetId("local", "localhost"),
        probe=Probes(ProbeResult(compute_ms=100.0), ProbeResult(compute_ms=101.0)),
        counters=Counters(tokens=tokens, read_bytes=read + 7, hits=hits + 9),
        metrics=Metrics(
            tok_s=tokens / sum(walls) * 1e3,
            hit_rate=hits / (32 * tokens),
            bytes_per_token=read / tokens,
            anon_peak_bytes=123_456_789,
            anon_within_limit=True,
            load_s=0.25,
        ),
        identity=ArmIdentity(model_sha256="a" * 64, engine_build_id="b1", direct_io=True),
        output_sha256="c" * 64,
        wait=Wait(30.0, "spacing"),
        started_unix_s=START_S + 100 * planned.index,
        ended_unix_s=START_S + 100 * planned.index + 20,
    )
    write_json(cell_dir / RECORD, record)


def write_verdict(directory: Path, outcome: str, effect_pct: float) -> None:
    verdict = CampaignVerdict(
        directory.name,
        Drift("stable", 0.4, ("sentinel 10.04 tok/s against baseline 10.00 tok/s",)),
        (
            CandidateVerdict(
                "cache_half",
                "baseline",
                outcome,  # type: ignore[arg-type]
                effect_pct=effect_pct,
                reasons=("not beyond what two cells can show",),
            ),
        ),
    )
    write_json(directory / rundir.VERDICT, verdict)


def write_journal(directory: Path, *events: str) -> None:
    """Of the cells that are there, and after them `events`."""
    lines: list[dict[str, Any]] = [{"event": "campaign_started"}]
    for path in sorted(directory.glob(f"cells/*/{RECORD}")):
        content = path.read_bytes()
        named = {"record": str(path.relative_to(directory)), "index": int(path.parent.name[:2])}
        sha256 = hashlib.sha256(content).hexdigest()
        lines.append({"event": "cell_finished", **named, "sha256": sha256})
    lines += [{"event": e} for e in events]
    text = "".join(
        json.dumps({"seq": i, "unix_s": START_S} | e) + "\n" for i, e in enumerate(lines)
    )
    (directory / JOURNAL).write_text(text)


def write_journal_again(directory: Path) -> None:
    """As the session would have left it, had the cells been as they are now."""
    kept = [e.event for e in read_journal(directory)]
    write_journal(directory, *(e for e in kept if e not in ("campaign_started", "cell_finished")))


def record_of(directory: Path, cell: str) -> CellRecord:
    path = directory / "cells" / cell / RECORD
    return from_json(CellRecord, json.loads(path.read_text()))


def cell_of(run: Any) -> str:
    """The directory of the cell that a run is of."""
    return str(run.info.run_name)[:-5]


class Store:
    """What is in a store, read back with MLflow's own client."""

    def __init__(self, uri: str) -> None:
        from mlflow.tracking import MlflowClient

        self.uri = uri
        self.client = MlflowClient(uri)
        experiment = self.client.get_experiment_by_name(EXPERIMENT)
        assert experiment is not None
        self.experiment = experiment
        runs = self.client.search_runs([experiment.experiment_id])
        self.parents = [r for r in runs if "mlflow.parentRunId" not in r.data.tags]
        # by their directories; a run's name also has the end of its campaign's id
        self.cells = {cell_of(r): r for r in runs if r not in self.parents}
        assert len(self.cells) + len(self.parents) == len(runs)

    @property
    def parent(self) -> Any:
        (parent,) = self.parents
        return parent

    def artifacts(self, run: Any) -> set[str]:
        return {a.path for a in self.client.list_artifacts(run.info.run_id)}


# --- servers -------------------------------------------------------------------------------------


class Server:
    """A real `mlflow server` on loopback; `stop` and `start` it again on the same port."""

    def __init__(self, home: Path, store: str, *, workers: int = 1) -> None:
        home.mkdir(exist_ok=True)
        self.home, self.store, self.workers = home, store, workers
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"),
            *("--port", str(self.port), "--workers", str(self.workers), "--serve-artifacts"),
            *("--artifacts-destination", str(self.home / "artifacts")),
        ]
        env = {
            **os.environ,
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "true",
            "MLFLOW_BACKEND_STORE_URI": self.store,  # not an argument, which everybody can read
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }
        with (self.home / "log.txt").open("ab") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=out, env=env, cwd=self.home, start_new_session=True
            )
        _await_port(self.port, self.process, self.home / "log.txt")

    def stop(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, 15)
            self.process.wait(120)
            self.process = None


@contextlib.contextmanager
def served(home: Path, store: str, *, workers: int = 1) -> Iterator[Server]:
    server = Server(home, store, workers=workers)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _await_port(port: int, process: subprocess.Popen[bytes], log_file: Path) -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        assert process.poll() is None, log_file.read_text()
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"no server within two minutes: {log_file.read_text()}")


# --- campaigns -----------------------------------------------------------------------------------

GATED_ENGINE = """\
#!/bin/sh
# The fake engine; a cell that has a gate waits until the file is gone.
for word in "$@"; do
    for gate in {gates}/*; do
        case "$word" in *"/$(basename "$gate")-"*) while [ -e "$gate" ]; do sleep 0.1; done ;; esac
    done
done
exec {engine} "$@"
"""


class Campaign:
    """A real one of four cells by the fake engine, as a user runs it; cells can be held up."""

    def __init__(self, place: Path, launcher: Path, model: Path, engine: Path, *words: str) -> None:
        self.place = place
        self.runs = place / "runs"
        self.gates = place / "gates"
        self.gates.mkdir(parents=True)
        gated = place / "engine"
        gated.write_text(GATED_ENGINE.format(gates=self.gates, engine=engine))
        gated.chmod(0o755)
        prompt = json.dumps({"wall_ms": 200}).replace('"', '\\"')
        self.argv = [
            *(sys.executable, "-m", "harness", "+experiment=matched_pair"),
            *("model=path", f"model.path={model}", f"runs_dir={self.runs}"),
            *(f"engine.binary={gated}", f"engine.launcher={launcher}"),
            *("schedule.spacing_s=0.2", "schedule.probe_s=0", "cell.n_predict=8"),
            *(f'cell.prompt="{prompt}"', f"engine.cache_dir={place / 'cache'}"),
            *words,
        ]
        self.env = {**os.environ, "MOE_DEVICE_LOCK": str(place / "device.lock")}
        self.process: subprocess.Popen[bytes] | None = None

    def hold(self, *indices: int) -> None:
        for index in indices:
            (self.gates / f"{index:02d}").touch()

    def release(self, index: int) -> None:
        (self.gates / f"{index:02d}").unlink()

    def start(self, *instead: str) -> None:
        argv = [sys.executable, "-m", "harness", *instead] if instead else self.argv
        with (self.place / "output.txt").open("ab") as out:
            self.process = subprocess.Popen(
                argv, stdout=out, stderr=out, env=self.env, start_new_session=True
            )

    @property
    def output(self) -> str:
        return (self.place / "output.txt").read_text()

    @property
    def directory(self) -> Path:
        (found,) = self.runs.glob("*/plan.json")
        return found.parent

    def wait(self, code: int = 0) -> str:
        assert self.process is not None
        assert self.process.wait(900) == code, self.output
        assert "Traceback" not in self.output
        return self.output

    def await_record(self, index: int) -> None:
        wait_for(lambda: bool(list(self.runs.glob(f"*/cells/{index:02d}-*/record.json"))), self)

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def wait_for(holds: Callable[[], bool], campaign: Campaign | None = None) -> None:
    deadline = time.monotonic() + 600
    while not holds():
        assert time.monotonic() < deadline, campaign and campaign.output
        if campaign is not None and campaign.process is not None:
            assert campaign.process.poll() is None or holds(), campaign.output
        time.sleep(0.1)


def parent_of(uri: str, campaign: str) -> Any:
    """The one run of a campaign, or None."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    found = [
        run
        for e in client.search_experiments()
        for run in client.search_runs([e.experiment_id], f"tags.`harness.campaign` = '{campaign}'")
        if run.data.tags["harness.kind"] == "campaign"
    ]
    assert len(found) <= 1
    return found[0] if found else None


def children_of(uri: str, run: Any) -> list[Any]:
    from mlflow.tracking import MlflowClient

    return sorted(
        MlflowClient(uri).search_runs(
            [run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{run.info.run_id}'"
        ),
        key=lambda child: str(child.info.run_name),
    )


def assert_whole(uri: str, directory: Path, status: str = "FINISHED") -> Any:
    """All of a campaign is in the store, once, and its files to the byte; its run."""
    from mlflow.tracking import MlflowClient

    parent = parent_of(uri, directory.name)
    assert parent is not None
    assert parent.info.status == status
    cell_dirs = {p.parent.name: p.parent for p in directory.glob("cells/*/record.json")}
    cells = children_of(uri, parent)
    assert [cell_of(c) for c in cells] == sorted(cell_dirs)
    client = MlflowClient(uri)
    for run in cells:
        assert run.info.status == "FINISHED"
        cell_dir = cell_dirs[cell_of(run)]
        assert_files(client, run, [p for p in cell_dir.iterdir() if p.is_file()])
        rows = (cell_dir / "tokens.csv").read_text().splitlines()[1:]
        history = client.get_metric_history(run.info.run_id, "tok_s")
        assert [m.step for m in history] == list(range(len(rows)))
    assert_files(client, parent, [directory / n for n in ("plan.json", "journal.jsonl")])
    return parent


def assert_files(client: Any, run: Any, files: Sequence[Path]) -> None:
    with tempfile.TemporaryDirectory() as fetched:
        there = Path(client.download_artifacts(run.info.run_id, "", fetched))
        for path in files:
            assert (there / path.name).read_bytes() == path.read_bytes(), path
