"""Randomised pairs through the command line: they end when they are decided, and can be resumed.

Real launcher, journal and verdict; the fake engine claims the time of each token (`wall_ms`), so
that who is faster is known.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cell_parts import FAKE_ENGINE
from pairs_parts import REPO, Command, campaign_in, prompt, quick, records, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


@pytest.fixture
def command(launcher: Path, model: Path, tmp_path: Path) -> Command:
    words = (f"engine.binary={FAKE_ENGINE}", "design.seed=4", "cells.candidate=retention")
    pairs = ("+experiment=sequential_pairs", *words)
    return functools.partial(quick, launcher, model, tmp_path, *pairs)


def verdict(campaign: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((campaign / "verdict.json").read_text())
    return found


def test_a_loss_ends_the_campaign_at_the_first_look_and_report_says_the_same(
    command: Command, tmp_path: Path
) -> None:
    done = run(command(f"cells.candidate.prompt={prompt(wall_ms=25)}"))
    campaign = campaign_in(tmp_path)
    (v,) = verdict(campaign)["verdicts"]
    assert v["outcome"] == "loss"
    assert v["effect_pct"] == pytest.approx(-20, abs=1)
    assert v["ci_pct"][0] < v["effect_pct"] < v["ci_pct"][1] < 0
    assert v["clean_pairs"] == 7
    assert len(records(campaign)) == 14  # of 36 that were planned
    planned = json.loads((campaign / "plan.json").read_text())
    assert len(planned["cells"]) == 36
    assert [r["arm"] for r in records(campaign)] == [
        arm for order in planned["coins"]["orders"][:7] for arm in order
    ]
    assert "next look at 7 clean pairs" in done.stdout
    assert {p.name for p in (campaign / "plots").iterdir()} == {
        *("estimates.svg", "traces.svg", "timeline.svg"),
    }

    before = (campaign / "verdict.json").read_bytes()
    again = run([sys.executable, "-m", "harness", "report", str(campaign)])
    assert "the same as" in again.stdout
    assert "loss" in again.stdout
    as_json = run([sys.executable, "-m", "harness", "report", str(campaign), "--json"])
    assert json.loads(as_json.stdout) == verdict(campaign)
    assert (campaign / "verdict.json").read_bytes() == before


def test_the_same_configuration_twice_is_neither_win_nor_loss(
    command: Command, tmp_path: Path
) -> None:
    run(command("cells.candidate={}"))
    (v,) = verdict(campaign_in(tmp_path))["verdicts"]
    assert v["outcome"] in ("equivalent", "inconclusive")


def test_a_campaign_that_was_killed_is_resumed_to_the_same_verdict(
    command: Command, tmp_path: Path
) -> None:
    running = subprocess.Popen(
        command(f"cells.candidate.prompt={prompt(wall_ms=25)}"),
        cwd=REPO,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 600
    while len(list(tmp_path.glob("runs/*/cells/*/record.json"))) < 5:
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    running.kill()
    running.wait()
    campaign = campaign_in(tmp_path)
    kept = {r["index"]: r for r in records(campaign)}
    run([sys.executable, "-m", "harness", f"resume={campaign}"])
    assert {i: r for r in records(campaign) if (i := r["index"]) in kept} == kept
    (v,) = verdict(campaign)["verdicts"]
    assert (v["outcome"], v["clean_pairs"]) == ("loss", 7)
    assert [r["index"] for r in records(campaign)] == list(range(14))

    events = (campaign / "journal.jsonl").read_bytes()
    run([sys.executable, "-m", "harness", f"resume={campaign}"])
    assert (campaign / "journal.jsonl").read_bytes() == events


def test_of_several_candidates_the_decided_one_runs_no_more(
    command: Command, tmp_path: Path
) -> None:
    """The slow one is decided at its first look; the one like the baseline is not."""
    run(
        command(
            f"cells.candidate.prompt={prompt(wall_ms=40)}",
            *("cells.third=retention", f"cells.third.prompt={prompt(jitter=0.3)}"),
        )
    )
    campaign = campaign_in(tmp_path)
    outcomes = {v["candidate"]: v for v in verdict(campaign)["verdicts"]}
    assert outcomes["candidate"]["outcome"] == "loss"
    assert outcomes["third"]["outcome"] not in ("win", "loss")
    cells = Counter(r["arm"] for r in records(campaign))
    assert cells["candidate"] == 8  # two candidates share the error: one pair more than for one
    assert cells["third"] == cells["baseline"] > 8


def test_an_arm_that_cannot_run_is_given_up_and_the_campaign_ends(
    command: Command, tmp_path: Path
) -> None:
    done = run(command(f"cells.candidate.prompt={prompt(exit=1, complain='no such thing')}"), 1)
    campaign = campaign_in(tmp_path)
    failed = [r for r in records(campaign) if r["status"] != "ok"]
    assert [r["arm"] for r in failed] == ["candidate"] * 2
    assert len(records(campaign)) == 4
    (v,) = verdict(campaign)["verdicts"]
    assert v["outcome"] not in ("win", "loss", "equivalent")
    assert "no such thing" in done.stdout


def test_stop_when_decided_false_runs_every_pair_and_judges_alike(
    command: Command, tmp_path: Path
) -> None:
    run(
        command(
            f"cells.candidate.prompt={prompt(wall_ms=25)}",
            *("design.stop_when_decided=false", "design.pairs=9"),
        )
    )
    campaign = campaign_in(tmp_path)
    assert len(records(campaign)) == 18
    (v,) = verdict(campaign)["verdicts"]
    assert (v["outcome"], v["clean_pairs"]) == ("loss", 7)


def test_blocks_forth_and_back_are_judged_as_well(command: Command, tmp_path: Path) -> None:
    run(command("design=abba", f"cells.candidate.prompt={prompt(wall_ms=25)}"))
    campaign = campaign_in(tmp_path)
    (v,) = verdict(campaign)["verdicts"]
    assert (v["outcome"], v["clean_pairs"]) == ("loss", 7)
    assert len(records(campaign)) == 28
