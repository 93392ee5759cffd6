"""Which campaign the gate is asked about, and which it knows besides: links, copies, places."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from gate_parts import night

from harness.cli import main
from harness.gate import ledger
from harness.gate.ledger import GATE, read_ledger
from harness.gate.nights import read_night

PASS, REGRESSION, USAGE, UNREADABLE = 0, 1, 2, 3
LAST = ("--baseline", "last-green", "--candidate")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("stored")
    return {
        "one": night(place, 1),
        "two": night(place, 2),
        "slower": night(place, 3, faster_pct=-10),
        "after": night(place, 4, faster_pct=-10),
    }


@pytest.fixture
def runs(stored: dict[str, Path], tmp_path: Path) -> Path:
    for path in stored.values():
        shutil.copytree(path, tmp_path / "runs" / path.name)
    return tmp_path / "runs"


@pytest.fixture
def gate(runs: Path, stored: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the verb with --json; words that name a stored campaign are taken for its copy."""

    def ask(*words: str | Path, code: int, runs_dir: Path = runs) -> Any:
        capsys.readouterr()
        named = [str(stored[w].name if w in stored else w) for w in words]
        assert main(["gate", *named, "--runs-dir", str(runs_dir), "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return ask


def states(directory: Path, metric: str = "tok_s") -> dict[str, str]:
    found = read_ledger(directory)
    assert found is not None
    return dict(found.gates[metric].arms)


def test_a_link_to_the_newest_campaign_is_that_campaign(
    gate: Any, runs: Path, stored: dict[str, Path]
) -> None:
    latest = runs / "latest"
    answers = []
    for name, code in (("one", UNREADABLE), ("two", PASS), ("slower", 1), ("after", 1)):
        latest.symlink_to(stored[name].name)
        answers.append(gate(*LAST, latest, code=code))
        latest.unlink()
    assert [a["candidate"] for a in answers] == [p.name for p in stored.values()]
    assert [a["kind"] for a in answers] == ["first", *["campaigns"] * 3]
    assert answers[-1]["baseline"] == stored["two"].name


def test_a_campaign_named_from_inside_has_its_own_name(
    gate: Any, runs: Path, stored: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs / stored["one"].name)
    for name in (".", "cells/.."):
        assert gate(*LAST, name, code=UNREADABLE)["candidate"] == stored["one"].name


def test_a_candidate_of_another_place_is_no_first(
    gate: Any, runs: Path, stored: dict[str, Path], tmp_path: Path
) -> None:
    gate(*LAST, "one", code=UNREADABLE)
    (tmp_path / "other").mkdir()
    slower = runs / stored["slower"].name
    found = gate(*LAST, slower, code=UNREADABLE, runs_dir=tmp_path / "other")
    assert f"--runs-dir {runs}" in found["headline"]
    assert not (slower / GATE).exists()
    assert gate(*LAST, "after", code=REGRESSION)["baseline"] == stored["one"].name
    link = tmp_path / "linked"
    link.symlink_to(runs)
    assert gate(*LAST, "two", code=PASS, runs_dir=link)["baseline"] == stored["one"].name


def test_copies_of_a_campaign_count_once(gate: Any, runs: Path, stored: dict[str, Path]) -> None:
    gate(*LAST, "one", code=UNREADABLE)
    gate(*LAST, "two", code=PASS)
    for i in range(4):
        copy = runs / f"{stored['one'].name} ({i})"
        shutil.copytree(runs / stored["one"].name, copy)
        data = json.loads((copy / GATE).read_text()) | {"campaign": copy.name}
        (copy / GATE).write_text(json.dumps(data))
    found = gate(*LAST, "after", code=REGRESSION)
    (why,) = {r for c in found["cases"] for r in c["reasons"] if "earlier campaigns" in r}
    assert "1 of 3 differences" in why


def test_a_night_before_all_others_is_no_first(
    gate: Any, runs: Path, stored: dict[str, Path]
) -> None:
    """A board without a clock's battery wakes up in 1970."""
    gate(*LAST, "two", code=UNREADABLE)
    found = gate(*LAST, "one", code=UNREADABLE)
    assert "1 that began later" in found["headline"]
    assert not (runs / stored["one"].name / GATE).exists()


def test_after_a_regression_nothing_is_green_of_itself(
    gate: Any, runs: Path, stored: dict[str, Path]
) -> None:
    """What it was held against may have been thrown away; the slow engine stays slow."""
    gate("--baseline", "one", "--candidate", "slower", code=REGRESSION)
    found = gate(*LAST, "after", code=UNREADABLE)
    assert "which regressed" in found["headline"]
    after = runs / stored["after"].name
    assert states(after) == {"B": "none", "C": "none"}
    assert states(after, "hit_rate") == {"B": "first", "C": "first"}
    gate(*LAST, "after", "--accept", code=PASS)
    assert states(after) == {"B": "accepted", "C": "accepted"}


def test_what_was_accepted_stays_so_when_it_is_gated_again(
    gate: Any, runs: Path, stored: dict[str, Path]
) -> None:
    one = runs / stored["one"].name
    for cell in ("00-*", "01-*"):  # no sound first one
        (path,) = one.glob(f"cells/{cell}/record.json")
        path.unlink()
    gate(*LAST, "one", "--accept", code=PASS)
    found = gate(*LAST, "one", code=UNREADABLE)
    assert "cannot be the first" in found["headline"]
    assert states(one) == {"B": "accepted", "C": "accepted"}


def test_two_gates_at_once_lose_neither_answer(
    runs: Path, stored: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read_night(runs / stored["slower"].name)
    standing = ledger._standing

    def slowly(*words: Any) -> Any:
        read = standing(*words)
        time.sleep(0.3)
        return read

    monkeypatch.setattr(ledger, "_standing", slowly)

    def say(metric: str, state: Any) -> None:
        arms = dict.fromkeys(found.arms, state)
        ledger.record(found, {metric: arms}, baseline="x", margin_pct=3.0)

    both = [
        threading.Thread(target=say, args=words)
        for words in (("tok_s", "regression"), ("hit_rate", "pass"))
    ]
    for one in both:
        one.start()
    for one in both:
        one.join()
    written = read_ledger(runs / stored["slower"].name)
    assert written is not None
    assert {n: e.state for n, e in written.gates.items()} == {
        "tok_s": "regression",
        "hit_rate": "pass",
    }


@pytest.mark.parametrize("flag", ["--baseline", "--candidate"])
def test_a_name_that_is_empty_is_none(
    flag: str,
    runs: Path,
    stored: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a shell's variable that is not set. It was a campaign's own verdict, and passed."""
    monkeypatch.chdir(runs / stored["one"].name)
    other = {"--baseline": "--candidate", "--candidate": "--baseline"}[flag]
    words = ["gate", flag, "", other, stored["two"].name, "--runs-dir", str(runs)]
    assert main(words) == USAGE
    assert f"{flag}: is empty; name a campaign" in capsys.readouterr().err
