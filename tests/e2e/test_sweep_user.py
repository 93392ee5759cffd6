"""A sweep as a user runs it: real engine, one campaign for each value, interrupted and taken up."""

from __future__ import annotations

import hashlib
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
SPACING_S = 1.5
SWEEP = (
    "-m",
    "+experiment=cache_sizes",
    "cell.engine.io_threads=1,2",
    "cell.n_predict=48",
    "cell.n_ctx=256",
    f"schedule.spacing_s={SPACING_S}",
    "schedule.probe_s=0",
    "tracking=off",
)


def start(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        # what CI's shell may have ignored would stay ignored
        ["env", "--default-signal=INT", sys.executable, "-m", "harness", *args],
        cwd=REPO,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPO)},
    )


def state(runs: Path) -> dict[str, Any]:
    (found,) = runs.glob("*/campaigns.json")
    said: dict[str, Any] = json.loads(found.read_text())
    return said


def records(campaign: Path) -> list[dict[str, Any]]:
    return [json.loads(p.read_text()) for p in sorted(campaign.glob("cells/*/record.json"))]


def content(directory: Path) -> dict[str, str]:
    files = [p for p in sorted(directory.rglob("*")) if p.is_file()]
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_a_sweep_that_is_interrupted_keeps_what_ran_and_is_taken_up(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    process = start(*SWEEP, f"runs_dir={runs}")
    try:
        end = time.monotonic() + 600
        # in the second campaign, once a cell of it is kept
        while time.monotonic() < end and process.poll() is None:
            if sum(len(records(c.parent)) for c in runs.glob("*/journal.jsonl")) >= 5:
                process.send_signal(signal.SIGINT)
                break
            time.sleep(0.05)
        out, err = process.communicate(timeout=1500)
    finally:
        process.kill()
    assert process.returncode == 130, (out, err)
    (line,) = err.splitlines()
    assert "interrupted in campaign 2 of 2 (cell.engine.io_threads=2)" in line
    assert "done: 1 (cell.engine.io_threads=1)" in line
    said = state(runs)
    assert f"resume={said['id']}" in line
    first, second = said["parts"]
    assert (first["status"], second["status"]) == ("ran", "interrupted")
    kept = content(runs / first["campaign"])
    measured = len(records(runs / second["campaign"]))
    assert 1 <= measured < 4

    again = start(f"resume={said['id']}", f"runs_dir={runs}")
    out, err = again.communicate(timeout=1500)
    assert again.returncode == 0, (out, err)
    assert content(runs / first["campaign"]) == kept, "what ran is not touched again"
    said = state(runs)
    assert [p["status"] for p in said["parts"]] == ["ran", "ran"]
    assert said["parts"][1]["campaign"] == second["campaign"], "the same, taken up"
    threads = [
        {r["argv"][r["argv"].index("--io-threads") + 1] for r in records(runs / p["campaign"])}
        for p in said["parts"]
    ]
    assert threads == [{"1"}, {"2"}]
    before, after = (records(runs / p["campaign"]) for p in said["parts"])
    assert len(before) == len(after) == 4
    assert after[0]["wait"]["reason"] == "spacing after the campaign before"
    gap = after[0]["started_unix_s"] - before[-1]["ended_unix_s"]
    assert gap >= SPACING_S
    for i, p in enumerate(said["parts"]):
        told = json.loads((runs / p["campaign"] / "sweep.json").read_text())
        assert (told["id"], told["index"], told["count"]) == (said["id"], i, 2)
        assert told["overrides"] == [f"cell.engine.io_threads={i + 1}"]
    assert out.count("2 of 2 campaigns ran") == 1


def test_every_limit_with_every_number_of_lanes_is_a_campaign(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    short = ("cell.n_predict=16", "schedule.spacing_s=0", "schedule.probe_s=0", "tracking=off")
    words = ("+experiment=matched_pair", "memory=glob(*)", "cell.engine.io_threads=1,2,4")
    process = start("-m", *words, *short, f"runs_dir={runs}")
    try:
        out, err = process.communicate(timeout=1500)
    finally:
        process.kill()
    assert process.returncode == 0, (out, err)
    found = []
    for part in state(runs)["parts"]:
        cells = records(runs / part["campaign"])
        assert [c["status"] for c in cells] == ["ok"] * 4
        for c in cells:
            lanes = c["argv"][c["argv"].index("--io-threads") + 1]
            limit, peak = c["data_limit_bytes"], c["metrics"]["anon_peak_bytes"]
            assert limit is None or 0 < peak < limit
            found.append((part["varied"][0], lanes, limit is not None))
    assert found == [
        (f"memory={memory}", lanes, memory == "half")
        for memory in ("half", "uncapped")
        for lanes in ("1", "2", "4")
        for _ in range(4)
    ]
