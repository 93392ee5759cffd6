"""The main job as a user runs it: real engine, shipped model, four real cells, MLflow, verdict."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

REPO = Path(__file__).resolve().parents[2]
DRIFT = {"stable", "drifting", "throttled", "not_comparable", "unknown"}
OUTCOMES = {
    "inconclusive",
    "contaminated",
    "confounded",
    "provisional_win",
    "provisional_loss",
    "unreadable",
}


def harness(*args: str, timeout: float = 1500) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", *args],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def only_campaign(runs: Path) -> Path:
    found = [p for p in runs.iterdir() if (p / "journal.jsonl").is_file()]
    assert len(found) == 1, found
    return found[0]


def records(campaign: Path) -> list[dict[str, Any]]:
    paths = sorted(campaign.glob("cells/*/record.json"))
    return [json.loads(p.read_text()) for p in paths]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    done = harness("+experiment=matched_pair", f"runs_dir={runs}", "schedule.spacing_s=2")
    assert done.returncode == 0, done.stderr
    for word in ("baseline", "retention", "spec2", "sentinel", "drift"):
        assert word in done.stdout.lower()
    return only_campaign(runs)


def test_every_file_of_the_contract_is_there(campaign: Path) -> None:
    for name in ("config.yaml", "plan.json", "journal.jsonl", "verdict.json", "environment.json"):
        assert (campaign / name).is_file(), name
    for cell in sorted((campaign / "cells").iterdir()):
        for name in ("record.json", "tokens.csv", "samples.csv", "stdout.txt", "stderr.txt"):
            assert (cell / name).is_file(), (cell, name)


def test_records_hold_what_was_measured(campaign: Path) -> None:
    cells = records(campaign)
    assert [c["cell"] for c in cells] == ["baseline", "retention", "spec2", "sentinel"]
    assert [c["role"] for c in cells] == ["baseline", "candidate", "candidate", "sentinel"]
    for cell in cells:
        assert cell["status"] == "ok"
        assert cell["exit_code"] == 0
        counters = cell["counters"]
        assert counters["tokens"] == 1024
        assert counters["requests"] == counters["hits"] + counters["misses"]
        assert cell["metrics"]["tok_s"] > 0
        assert cell["metrics"]["anon_peak_bytes"] > 0
        assert cell["probe"]["before"]["compute_ms"] > 0
        assert cell["probe"]["after"]["compute_ms"] > 0
        assert cell["entry"]["mem_available_bytes"] > 0


def test_tokens_csv_agrees_with_the_record(campaign: Path) -> None:
    for path in sorted(campaign.glob("cells/*/tokens.csv")):
        record = json.loads((path.parent / "record.json").read_text())
        rows = list(csv.DictReader(path.open()))
        assert len(rows) == record["counters"]["tokens"]
        wall_s = sum(float(r["wall_ms"]) for r in rows) / 1e3
        assert record["metrics"]["tok_s"] == pytest.approx(len(rows) / wall_s, rel=1e-3)


def test_the_sentinel_does_the_baselines_work_and_says_its_words(campaign: Path) -> None:
    baseline, _, _, sentinel = records(campaign)
    assert baseline["counters"] == sentinel["counters"]
    assert baseline["output_sha256"] == sentinel["output_sha256"]
    assert baseline["output_sha256"]
    assert baseline["metrics"]["nll"] == sentinel["metrics"]["nll"]
    verdict = json.loads((campaign / "verdict.json").read_text())
    assert verdict["drift"]["verdict"] not in {"not_comparable", "unknown"}


def test_the_cells_differ_in_what_they_were_made_to_differ(campaign: Path) -> None:
    assert len({c["output_sha256"] for c in records(campaign)}) == 1, "one text for all"
    baseline, retention, spec2, _ = (c["counters"] for c in records(campaign))
    for counters in (baseline, retention, spec2):
        assert counters["evictions"] > 0
        assert 0 < counters["dropped"] < counters["routed"]
    assert baseline["spec_experts"] is None
    assert baseline["retained"] is None
    assert retention["retained"] > 0
    assert retention["spec_read_bytes"] == 0
    assert spec2["spec_read_bytes"] > 0
    assert spec2["spec_experts"] >= spec2["spec_useful"] > 0


def test_the_verdict_follows_the_contract(campaign: Path) -> None:
    verdict = json.loads((campaign / "verdict.json").read_text())
    assert verdict["campaign"] == campaign.name
    assert verdict["drift"]["verdict"] in DRIFT
    assert isinstance(verdict["drift"]["sentinel_change_pct"], float)
    assert [v["candidate"] for v in verdict["verdicts"]] == ["retention", "spec2"]
    for v in verdict["verdicts"]:
        assert v["outcome"] in OUTCOMES
        assert v["reasons"]


def test_mlflow_holds_the_campaign(campaign: Path) -> None:
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{campaign.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("matched_pair")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    parents = [r for r in runs if "mlflow.parentRunId" not in r.data.tags]
    cells = {r.info.run_name: r for r in runs if "mlflow.parentRunId" in r.data.tags}
    assert len(parents) == 1
    assert "verdict.drift" in parents[0].data.tags
    assert "verdict.retention" in parents[0].data.tags
    assert len(cells) == 4
    for record in records(campaign):
        (run,) = [r for name, r in cells.items() if record["cell"] in name]
        assert run.data.metrics["tok_s"] == pytest.approx(record["metrics"]["tok_s"])
        assert run.data.metrics["hit_rate"] == pytest.approx(record["metrics"]["hit_rate"])


def test_a_second_resume_has_nothing_to_do(campaign: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in campaign.glob("cells/*/record.json")}
    again = harness(f"resume={campaign}")
    assert again.returncode == 0, again.stderr
    assert {p: p.stat().st_mtime_ns for p in campaign.glob("cells/*/record.json")} == before


def test_ctrl_c_keeps_what_was_measured_and_resume_finishes(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    process = subprocess.Popen(
        [
            *("env", "--default-signal=INT"),  # what CI's shell may have ignored would stay ignored
            sys.executable,
            "-m",
            "harness",
            "+experiment=matched_pair",
            f"runs_dir={runs}",
            "schedule.spacing_s=3",
            "schedule.probe_s=0.1",
            "cell.n_predict=128",
        ],
        cwd=REPO,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and not list(runs.glob("*/cells/00-*/record.json")):
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 130, out
    assert "resume=" in out
    assert "Traceback" not in out
    found = only_campaign(runs)
    kept = records(found)
    assert kept
    assert kept[0]["status"] == "ok"

    resumed = harness(f"resume={found.name}", f"runs_dir={runs}")
    assert resumed.returncode == 0, resumed.stderr
    finished = records(found)
    assert len(finished) == 4
    assert finished[0] == kept[0]
    assert (found / "verdict.json").is_file()
