"""`gate` that measures: the baseline's engine against the present one, through the command line.

Real launcher, journal and verdict; the builds are fake ones that claim what a token took, so that
which of them is slower is known whatever else the machine does.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_builds import fake_build_at
from pairs_parts import quick, run

from harness.configure import load_yaml
from harness.judgement import config_sha256

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def place(launcher: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three builds, and in `runs` a campaign that the old one made."""
    place = tmp_path_factory.mktemp("gate")
    for name, own in {"old": {}, "slow": {"pace": 1.3}, "stray": {"stray": 1}}.items():
        fake_build_at(place / name, f"b-{name}", **own)
    run(
        quick(
            *(launcher, model, place),
            *("+experiment=sequential_pairs", f"engine.binary={place / 'old'}", "design.pairs=1"),
            *("cells={baseline:{},candidate:{}}", "cell.text=null"),
            *("cell.engine.drop_cold_experts=null", "design.seed=4"),
        )
    )
    return place


def call(*argv: str | Path, codes: tuple[int, ...] = (0,)) -> subprocess.CompletedProcess[str]:
    return run(list(map(str, argv)), *codes)


def gate(place: Path, *words: str | Path, codes: tuple[int, ...]) -> Any:
    """The answer of a gate that runs a campaign; what that tells is not mixed with it."""
    runs = ("--runs-dir", place / "runs", "--json")
    done = call(sys.executable, "-m", "harness", "gate", *runs, *words, codes=codes)
    found = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode
    return found


def refused(place: Path, *words: str | Path) -> str:
    argv = (sys.executable, "-m", "harness", "gate", "--runs-dir", place / "runs", *words)
    (line,) = call(*argv, codes=(2,)).stderr.splitlines()
    return line


def first(place: Path) -> str:
    return min(p.name for p in (place / "runs").iterdir())


def started_with(campaign: Path, instead_of: str, words: str) -> None:
    """As if it had been asked for otherwise: the journal has the hash of the configuration."""
    config, journal = campaign / "config.yaml", campaign / "journal.jsonl"
    was = config_sha256(load_yaml(config))
    assert instead_of in config.read_text() and was in journal.read_text()
    config.write_text(config.read_text().replace(instead_of, words))
    journal.write_text(journal.read_text().replace(was, config_sha256(load_yaml(config))))


def test_a_slower_build_is_a_regression_and_the_baselines_engine_was_run_beside_it(
    place: Path,
) -> None:
    words = ("--baseline", first(place), "--", f"engine.binary={place / 'slow'}")
    found = gate(place, *words, "design.pairs=7", codes=(1,))
    one = next(c for c in found["cases"] if c["metric"] == "tok_s")
    assert one["change_pct"] == pytest.approx((1 / 1.3 - 1) * 100, abs=2)
    assert found["builds"] == [["b-old"], ["b-slow"]]
    assert found["experiment"] == "sequential_pairs_builds"
    assert "was that of" in found["notes"][0]
    made = place / "runs" / found["candidate"]
    assert json.loads((made / "gate.json").read_text())["gates"]["verdict"]["state"] == "regression"
    # the campaign alone says the same, and nothing of it is green
    again = gate(place, "--candidate", found["candidate"], codes=(1,))
    assert again["cases"] == found["cases"]
    assert "no campaign" in refused(place, "--baseline", "last-green")


def test_the_same_build_on_both_sides_shows_nothing(place: Path) -> None:
    words = ("--baseline", first(place), "--", f"engine.binary={place / 'old'}")
    found = gate(place, *words, "design.pairs=1", codes=(3,))
    assert "ran the same build with the same settings" in found["headline"]


def test_another_output_is_a_regression_before_the_speed_is_known(place: Path) -> None:
    words = ("--baseline", first(place), "--", f"engine.binary={place / 'stray'}")
    found = gate(place, *words, "design.pairs=1", codes=(1,))
    assert {c["metric"]: c["outcome"] for c in found["cases"]} == {
        "tok_s": "none",
        "output": "regression",
    }


def test_an_engine_that_is_gone_means_the_experiment_anew(place: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(place, copy)
    started_with(copy / "runs" / first(copy), str(place / "old"), str(copy / "gone"))
    words = ("--baseline", first(copy), "--", f"engine.binary={place / 'slow'}")
    found = gate(copy, *words, codes=(1, 3))  # without probes here nothing shows two days alike
    assert "is not to be had here any more" in found["notes"][0]
    assert "run anew" in found["notes"][0]
    assert found["baseline"] == first(copy)
    assert found["builds"] == [["b-old"], ["b-slow"]]


def test_a_command_line_that_means_something_else_now_is_refused(
    place: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(place, copy)
    started_with(copy / "runs" / first(copy), "spacing_s: 0", "spacing_s: 30")
    assert "schedule.spacing_s: 30 -> 0" in refused(copy, "--baseline", first(copy))
    assert "did you mean 'baseline'" in refused(copy, "--baseline", first(copy), "--arm", "basline")
    assert "--accept" in refused(copy, "--baseline", first(copy), "--accept")
    assert "own verdict, on tok_s" in refused(
        copy, "--baseline", first(copy), "--metric", "hit_rate"
    )
