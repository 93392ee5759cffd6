"""The gate with the real engine: against itself, and against an engine that is really slower.

The slower one is the same engine that also writes a row for every node of its graph, behind its
user's back: a third of its time and more, on whatever machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from campaign_parts import DISTURBED_PAIRS_COUNT

from harness.build import ensure_engine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

REPO = Path(__file__).resolve().parents[2]
# all experts fit, so that the engine computes and does not wait for a disk that others use, too
SHORT = (
    *("+experiment=sequential_pairs", "cells={baseline:{},candidate:{}}", "tracking=off"),
    *("cell.engine.drop_cold_experts=null", "cell.engine.cache_fraction=1.0"),
    *("cell.n_predict=256", "cell.n_ctx=512", "schedule.spacing_s=0", "schedule.probe_s=0.1"),
    *DISTURBED_PAIRS_COUNT,
)
# how often a neighbour on the machine may spoil a whole campaign
TRIES = 3
SLOW = """#!/bin/sh
case "$*" in
*--version* | *--plan-memory*) exec {engine} "$@" ;;
*) exec {engine} "$@" --compute-trace /dev/null --compute-trace-by node ;;
esac
"""


def harness(*args: str, codes: tuple[int, ...]) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "harness", *args]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode in codes, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With one campaign, accepted by hand."""
    runs = tmp_path_factory.mktemp("gate") / "runs"
    harness(*SHORT, "design.pairs=1", f"runs_dir={runs}", codes=(0,))
    (first,) = runs.iterdir()
    harness("gate", "--candidate", str(first), "--accept", "--runs-dir", str(runs), codes=(0,))
    return runs


def gated(runs: Path, *overrides: str, codes: tuple[int, ...]) -> Any:
    words = ("gate", "--baseline", "last-green", "--runs-dir", str(runs), "--json", "--")
    return json.loads(harness(*words, *overrides, codes=codes).stdout)


def test_the_same_engine_passes_or_nothing_can_be_said(runs: Path) -> None:
    found = gated(runs, "design.pairs=7", codes=(0, 3))
    assert found["builds"][0] == found["builds"][1]
    output = [c["outcome"] for c in found["cases"] if c["metric"] == "output"]
    assert "regression" not in output


def test_a_slower_engine_is_a_regression(runs: Path, tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.write_text(SLOW.format(engine=ensure_engine().engine))
    slow.chmod(0o755)
    outcomes = []
    for _ in range(TRIES):
        found = gated(runs, f"engine.binary={slow}", "design.pairs=18", codes=(1, 3))
        outcomes.append(found["verdict"])
        if found["verdict"] == "regression":
            break
    assert outcomes[-1] == "regression", found
    one = next(c for c in found["cases"] if c["metric"] == "tok_s")
    assert one["change_pct"] < -3
    output = [c["outcome"] for c in found["cases"] if c["metric"] == "output"]
    assert output == ["pass"], "it computes the same, only slower"
