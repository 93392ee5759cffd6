"""Every experiment that is shipped, short, as a user runs it: real engine, shipped model.

The main job has a file of its own, test_main_job.py.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness.configure import conf_dir, options
from harness.engine_flags import EVICTION_POLICIES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

REPO = Path(__file__).resolve().parents[2]
NAMES = options(conf_dir(), "experiment")
ELSEWHERE = {"matched_pair"}
LADDERS = {"memory_levels", "eviction", "identity", "topk_ablation"}
PAIRS = {"sequential_pairs", "aa"}
OF_THEIR_OWN = {"predictor_accuracy", "nightly", *LADDERS, *PAIRS, *ELSEWHERE}
MIB = 2**20
# 29 MiB of experts, twice inflated: a cache of some 30 % of them, and of two thirds
CAPS = ("model.factor=2", "design.levels=null", "design.levels_mb=[72,92]")


def harness(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", *args],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )


def campaign(runs: Path, name: str, *overrides: str) -> tuple[str, Path, list[dict[str, Any]]]:
    short = (
        "cell.n_predict=48",
        "cell.n_ctx=256",
        "schedule.spacing_s=0.1",
        "schedule.probe_s=0.1",
    )
    done = harness(f"+experiment={name}", f"runs_dir={runs}", *short, *overrides)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr
    (found,) = [p for p in runs.iterdir() if (p / "journal.jsonl").is_file()]
    records = [json.loads(p.read_text()) for p in sorted(found.glob("cells/*/record.json"))]
    return done.stdout, found, records


def logged_table(runs: Path, experiment: str, name: str) -> dict[str, Any]:
    """A table of the campaign's run in the MLflow store beside the campaigns."""
    from mlflow import MlflowClient
    from mlflow.artifacts import download_artifacts

    # not by load_table: whatever its client's store, it makes MLflow's default one where it runs
    uri = f"sqlite:///{runs / 'mlflow.db'}"
    client = MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    (run,) = client.search_runs([found.experiment_id], "tags.`harness.kind` = 'campaign'")
    path = download_artifacts(run_id=run.info.run_id, artifact_path=name, tracking_uri=uri)
    table: dict[str, Any] = json.loads(Path(path).read_text())
    return table


def test_every_file_in_conf_experiment_is_run() -> None:
    """A new one is taken for a comparison, and run as such; what is none must have a test here."""
    assert set(NAMES) >= OF_THEIR_OWN, "named here, and not shipped"
    calls = [n for n in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(n, ast.Call)]
    run = {
        call.args[1].value
        for call in calls
        if isinstance(call.func, ast.Name)
        and call.func.id in ("campaign", "capped", "sweep")
        and isinstance(call.args[1], ast.Constant)
    }
    assert OF_THEIR_OWN - PAIRS - run == ELSEWHERE
    main_job = Path(__file__).with_name("test_main_job.py").read_text()
    assert all(f"+experiment={name}" in main_job for name in ELSEWHERE)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in OF_THEIR_OWN])
def test_a_comparison_runs_to_its_verdict(name: str, tmp_path: Path) -> None:
    small = ("model.factor=2",) if name == "io_lanes" else ()
    text, found, records = campaign(tmp_path / "runs", name, "tracking=off", *small)
    verdict = json.loads((found / "verdict.json").read_text())
    drift = verdict["drift"]
    assert drift["verdict"] != "not_comparable"
    # cells as short as these are judged on a slow machine only
    assert drift["verdict"] != "unknown" or all("too short" in r for r in drift["reasons"])
    assert {v["candidate"] for v in verdict["verdicts"]} == {
        r["arm"] for r in records if r["role"] == "candidate"
    }
    for record in records:
        assert record["status"] == "ok"
        assert f"{record['index']} {record['cell']}" in text
    header = next(line for line in text.splitlines() if "tok/s" in line and "status" in line)
    assert ("of it spec" in header) is (name == "prefetch")
    assert ("dropped" in header) is (name == "drop_sweep")
    assert "ppl" in header
    assert len({r["output_sha256"] for r in records}) == 1, "all decode the same text"
    # what drops nothing computes the same; what drops, another result
    different = {r["metrics"]["nll"] for r in records}
    assert len(different) > 1 if name == "drop_sweep" else len(different) == 1


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_pairs_run_and_are_judged_again_alike(name: str, tmp_path: Path) -> None:
    """Three pairs cannot give p below 0.25: nothing is decided, whatever the machine does."""
    short = ("cell.n_predict=200", "design.pairs=3")
    text, found, records = campaign(tmp_path / "runs", name, "tracking=off", *short)
    assert len(records) == 6
    assert {r["status"] for r in records} == {"ok"}
    verdict = json.loads((found / "verdict.json").read_text())
    (v,) = verdict["verdicts"]
    assert v["outcome"] in ("inconclusive", "contaminated", "provisional_win", "provisional_loss")
    assert len(verdict["pairs"]) == 3
    ends = ("left of the budget", "no more cells needed", "it ends undecided")
    assert sum(text.count(words) for words in ends) >= 2
    again = harness("report", str(found), "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == verdict


def capped(runs: Path, name: str, *overrides: str) -> tuple[str, Any, list[dict[str, Any]]]:
    """A campaign at two caps: what it printed, its verdict, its records."""
    text, found, records = campaign(runs, name, "tracking=off", *CAPS, *overrides)
    assert {r["status"] for r in records} == {"ok"}
    assert all(r["metrics"]["anon_within_limit"] for r in records if r["level"] is not None)
    return text, json.loads((found / "verdict.json").read_text()), records


def test_every_policy_is_measured_at_every_cap(tmp_path: Path) -> None:
    text, verdict, records = capped(tmp_path / "runs", "eviction")
    rows = verdict["eviction"]
    assert len(rows) == len(records) == 2 * len(EVICTION_POLICIES)
    assert {row["policy"] for row in rows} == set(EVICTION_POLICIES)
    groups = ("stale_left", "stale_right", "current_left", "current_right")
    for row in rows:
        assert row["evictions"] == sum(row[group] for group in groups) > 0
        assert row["read_vs_lru"] == 1.0 or row["policy"] != "lru"
    # which expert goes changes nothing that is computed
    assert len({r["metrics"]["nll"] for r in records}) == 1
    assert "current right" in text


def test_greedy_output_is_identical_under_every_cap_and_policy(tmp_path: Path) -> None:
    text, verdict, records = capped(tmp_path / "runs", "identity")
    rows = verdict["identity"]
    assert len(rows) == len(records) - 1 == 2 * len(EVICTION_POLICIES)
    assert {(row["likeness"], row["detail"]) for row in rows} == {("identical", None)}
    assert all(row["evictions"] > 0 and row["tokens"] == 48 for row in rows)
    assert f"{len(rows)} of {len(rows)} cells identical to plain" in text


def test_fewer_experts_read_less_and_say_something_else(tmp_path: Path) -> None:
    cells = ("ppl_4", "ppl_2", "ppl_1")
    short = [f"cells.{name}.perplexity_chunks=2" for name in cells]
    text, verdict, _ = capped(tmp_path / "runs", "topk_ablation", *short)
    rows = verdict["topk"]
    assert [row["top_k"] for row in rows] == [4, 2, 1] * 2
    for own, two, one in (rows[:3], rows[3:]):
        assert own["requests"] > two["requests"] > one["requests"]
        assert own["greedy_tokens"] is None
        assert two["greedy_tokens"] == one["greedy_tokens"] == 64
        assert one["parts_at"] is not None
    assert [r["perplexity"] for r in rows[:3]] == [r["perplexity"] for r in rows[3:]]
    assert len({row["perplexity"] for row in rows}) == 3
    assert "greedy output parts" in text


def test_predictors_are_scored_shown_and_logged(tmp_path: Path) -> None:
    text, found, (record,) = campaign(tmp_path / "runs", "predictor_accuracy")
    control = record["prediction"]["predictors"]["control"]
    assert control["slots_hit"] >= 0.999 * control["slots"] > 0
    # of the device there may be one: this machine can be busy
    assert not [line for line in text.splitlines() if "warning: not logged" in line]
    assert "warning: plots were not drawn" not in text
    lines = [line.split() for line in text.splitlines()]
    assert [line[1] for line in lines if line[:1] == ["control"]] == ["100.0%"]
    (first_layer,) = [
        line for line in lines if line[:1] == ["0"] and len(line) == 6 and "-" in line
    ]
    assert first_layer[1:3] == ["-", "-"]
    verdict = json.loads((found / "verdict.json").read_text())
    assert verdict["verdicts"] == []

    table = logged_table(found.parent, "predictor_accuracy", "predictors.json")
    assert table["data"][-1][table["columns"].index("predictor")] == "control"


def test_a_ladder_of_memory_levels_passes_refuses_and_repeats_its_output(tmp_path: Path) -> None:
    """Of a small model with experts of two sizes: the run needs 38 MiB beside 20 MiB of experts."""
    small = ("model.geometry=small", "model.weights=Q4_K+BF16@3", "cell.n_ctx=512")
    levels = ("design.levels=null", "design.levels_mb=[24,44,52,72]")
    text, found, records = campaign(tmp_path / "runs", "memory_levels", *small, *levels)
    assert [r["status"] for r in records] == ["refused", "ok", "ok", "ok"]
    refused, *passed = records
    assert f"allowed {24 * MIB} (--ram-budget-mb)" in refused["status_detail"]
    assert refused["counters"]["tokens"] is None
    for record in passed:
        assert record["data_limit_bytes"] == record["budget"]["ram_budget_bytes"]
        assert record["metrics"]["anon_within_limit"] is True
        assert [c["slot_bytes"] for c in record["arena"]["classes"]] == [122880, 405504]
    first, _, last = passed
    assert first["counters"]["evictions"] > 0 == last["counters"]["evictions"]
    assert last["arena"]["coverage"] == 1
    read = [r["metrics"]["bytes_per_token"] for r in passed]
    assert read == sorted(read, reverse=True)

    rows = json.loads((found / "verdict.json").read_text())["levels"]
    assert [r["result"] for r in rows] == ["FAIL", "PASS", "PASS", "PASS"]
    assert len({r["output_sha256"] for r in rows[1:]}) == 1
    beside = [r["anon_peak_bytes"] - r["arena_bytes"] for r in rows[1:]]
    assert max(beside) - min(beside) < 2 * MIB, "memory beside the arena is no matter of its size"
    files = [r["rss_peak_bytes"] - r["anon_peak_bytes"] for r in rows[1:]]
    assert max(files) - min(files) < 2 * MIB, "nor are mapped files: the program, and no weights"
    assert "FAIL (refused)" in text
    assert rows[0]["detail"] == refused["status_detail"]
    assert rows[0]["detail"] in text
    assert "3 of 4 levels passed" in text
    assert "greedy output at the passed levels: identical" in text
    end = time.monotonic() + 10  # what was killed goes in its time
    while any(str(tmp_path) in words_of(p) for p in Path("/proc").glob("[0-9]*/cmdline")):
        assert time.monotonic() < end, "something still runs"
        time.sleep(0.05)

    table = logged_table(found.parent, "memory_levels", "levels.json")
    shown = [row[table["columns"].index("result")] for row in table["data"]]
    assert shown == ["FAIL (refused)", "PASS", "PASS", "PASS"]
    why = [row[table["columns"].index("detail")] for row in table["data"]]
    assert why == [rows[0]["detail"], None, None, None]


def sweep(runs: Path, name: str, *overrides: str) -> dict[str, Any]:
    """A night, short, as the workflow runs it: what it, and the gate, say of its campaigns."""
    assert name == "nightly"
    out = runs.with_name("night")
    short = ("cell.n_predict=48", "cell.n_ctx=256", "schedule.probe_s=0")
    done = subprocess.run(
        [
            *(sys.executable, REPO / ".github/nightly/night.py"),
            *("--out", out, "--runs-dir", runs, "--budget-s", "600", *short, *overrides),
        ],
        cwd=REPO,
        env={**os.environ, "GITHUB_OUTPUT": str(runs.with_name("output"))},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert runs.with_name("output").read_text().endswith("regressed=false\n")
    said: dict[str, Any] = json.loads((out / "night.json").read_text())
    return said


def test_a_night_runs_what_fits_its_budget_and_each_night_is_gated_by_those_before(
    tmp_path: Path,
) -> None:
    from mlflow import MlflowClient

    runs, out = tmp_path / "runs", tmp_path / "night"
    entries = (
        "{experiment: predictor_accuracy}",
        "{experiment: cache_sizes, overrides: ['schedule.spacing_s=1000']}",
    )
    said = sweep(runs, "nightly", f"nightly.entries=[{', '.join(entries)}]")
    first, left_out = said["parts"]
    assert [p["status"] for p in (first, left_out)] == ["ran", "left_out"]
    # three pauses, and the one after the campaign before
    assert left_out["why"].startswith("expected 1 h 6 min + 4 cells unknown, ")
    assert left_out["why"].endswith(" of the budget left")
    assert "1 of 2 campaigns ran, 1 left out" in (out / "night.md").read_text()
    told = json.loads((runs / first["campaign"] / "sweep.json").read_text())
    assert (told["id"], told["name"], told["count"]) == (said["id"], "nightly", 2)
    # there is nothing to compare the first night with, and what was left out is asked nothing
    assert [g["verdict"] for g in said["gate"]] == ["none"]

    # where everything is read, and how often it hits, another night must say the same
    said = sweep(runs, "nightly", f"nightly.entries=[{entries[0]}]", "tracking=off")
    (gated,) = said["gate"]
    assert gated["verdict"] == "pass", gated
    assert gated["result"]["baseline"] == first["campaign"]
    assert [c["metric"] for c in gated["result"]["cases"]][:1] == ["bytes_per_token"]
    assert (out / "junit-01-predictor_accuracy.xml").is_file()

    client = MlflowClient(f"sqlite:///{runs / 'mlflow.db'}")
    found = client.get_experiment_by_name("predictor_accuracy")
    assert found is not None
    kinds = [run.data.tags["harness.kind"] for run in client.search_runs([found.experiment_id])]
    assert kinds.count("campaign") == kinds.count("sweep") == 1


def words_of(cmdline: Path) -> str:
    try:
        return cmdline.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:  # gone
        return ""
