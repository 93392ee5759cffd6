"""Campaigns that the gate must not believe: damaged, mixed, laundered. Read from disk as any."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cell_parts import make_arm
from gate_parts import night

from harness.cli import main
from harness.errors import UsageError
from harness.gate.comparable import settings_of
from harness.gate.ledger import GATE
from harness.gate.rerun import _of_present
from harness.planned import Arm, GivenBinary
from harness.records import CellRecord
from harness.sweep.gating import gate_all
from harness.sweep.state import SweepState

PASS, REGRESSION, USAGE, UNREADABLE = 0, 1, 2, 3


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("stored")
    return {
        "baseline": night(place, 1),
        "same": night(place, 2, build="b1"),
        "slower": night(place, 3, build="b1", faster_pct=-10),
        "after": night(place, 4, build="b1", faster_pct=-10),
        "win": night(place, 5, effect_pct=10.0, pairs=12),
    }


@pytest.fixture
def runs(stored: dict[str, Path], tmp_path: Path) -> Path:
    """Copies, which a test may damage."""
    place = tmp_path / "runs"
    for path in stored.values():
        shutil.copytree(path, place / path.name)
    return place


@pytest.fixture
def gate(runs: Path, stored: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the verb with --json; words that name a stored campaign are taken for its copy."""

    def ask(*words: str | Path, code: int) -> Any:
        capsys.readouterr()
        named = [str(stored[w].name if w in stored else w) for w in words]
        argv = ["gate", *named, "--runs-dir", str(runs), "--json"]
        assert main(argv) == code, capsys.readouterr()
        shown = capsys.readouterr()
        if not shown.out:
            (line,) = shown.err.splitlines()
            assert line.startswith("harness: error: ")
            return line
        return json.loads(shown.out)

    return ask


@pytest.fixture
def changed(runs: Path, stored: dict[str, Path]) -> Callable[..., Path]:
    """Alters the records of a stored campaign's copy, and the hashes by which the journal knows
    them."""

    def change(name: str, alter: Callable[[CellRecord, dict[str, Any]], None]) -> Path:
        from harness.jsonable import from_json

        directory = runs / stored[name].name
        lines = []
        for line in (directory / "journal.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "cell_finished":
                path = directory / event["record"]
                data = json.loads(path.read_text())
                alter(from_json(CellRecord, data), data)
                content = json.dumps(data).encode()
                path.write_bytes(content)
                event["sha256"] = hashlib.sha256(content).hexdigest()
            lines.append(json.dumps(event))
        (directory / "journal.jsonl").write_text("\n".join(lines) + "\n")
        return directory

    return change


def reasons(found: Any) -> str:
    return " | ".join(r for c in found["cases"] for r in c["reasons"])


def cells_of(directory: Path, arm: str) -> list[Path]:
    records = sorted(directory.glob("cells/*/record.json"))
    return [p.parent for p in records if json.loads(p.read_text())["arm"] == arm]


TWO = ("--baseline", "baseline", "--candidate", "same")


# --- one campaign's own verdict -------------------------------------------------------------------


@pytest.mark.parametrize("status", ["killed", "failed"])
def test_a_candidate_that_hangs_in_one_cell_does_not_pass(
    status: str, gate: Any, changed: Any, tmp_path: Path
) -> None:
    gate("--candidate", "win", code=PASS)

    def hang(r: CellRecord, data: dict[str, Any]) -> None:
        if r.arm == "C" and r.index in (2, 3):
            data |= {"status": status, "status_detail": "its time limit"}

    changed("win", hang)
    junit = tmp_path / "junit.xml"
    found = gate("--candidate", "win", "--junit", junit, code=UNREADABLE)
    assert found["cases"][0]["failed"] and "its time limit" in found["headline"]
    assert 'errors="1"' in junit.read_text()


@pytest.mark.parametrize("arm", ["B", "C"])
def test_cells_that_are_lost_may_have_been_those_that_failed(
    arm: str, gate: Any, runs: Path, stored: dict[str, Path]
) -> None:
    for path in cells_of(runs / stored["win"].name, arm)[4:6]:
        shutil.rmtree(path)
    found = gate("--candidate", "win", code=UNREADABLE)
    assert "is lost: " in found["headline"] and reasons(found).count("is lost: ") == 2


def test_a_cell_that_began_and_left_nothing_is_lost(
    gate: Any, runs: Path, stored: dict[str, Path]
) -> None:
    journal = runs / stored["win"].name / "journal.jsonl"
    lines = journal.read_text().splitlines()
    last = json.loads(lines[-1])
    lines[-1] = json.dumps({**last, "event": "cell_started"})
    journal.write_text("\n".join(lines) + "\n")
    found = gate("--candidate", "win", code=UNREADABLE)
    assert "it began and left no record" in reasons(found)


def test_another_build_whose_output_is_not_shown_does_not_pass(gate: Any, changed: Any) -> None:
    def another(r: CellRecord, data: dict[str, Any]) -> None:
        if r.arm == "C":
            data["binary"] = dataclasses.asdict(GivenBinary("/new", "f" * 64))
            data["identity"]["engine_build_id"] = "b9"

    changed("win", another)  # these cells have no text beside them
    found = gate("--candidate", "win", code=UNREADABLE)
    assert {c["metric"]: c["outcome"] for c in found["cases"]}["output"] == "none"
    assert "left no output" in reasons(found)


# --- two campaigns --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("direct_io", False),
        ("capacity_bytes", 1),
        ("model_sha256", "1" * 64),
        ("engine_build_id", "b2"),
        ("engine_sha256", "0" * 64),
        ("threads", 2),
    ],
)
def test_what_changed_within_an_arm_is_no_configuration(
    field: str, value: object, gate: Any, changed: Any
) -> None:
    gate(*TWO, code=PASS)

    def later(r: CellRecord, data: dict[str, Any]) -> None:
        if r.index > 3:
            data["identity"][field] = value

    changed("same", later)
    found = gate(*TWO, code=UNREADABLE)
    assert "is no single configuration" in found["headline"] and field in found["headline"]


def test_another_device_or_limit_within_an_arm_is_no_configuration(gate: Any, changed: Any) -> None:
    def later(r: CellRecord, data: dict[str, Any]) -> None:
        if r.index > 3:
            data["target"] = {"kind": "local", "name": "another"}
            data["data_limit_bytes"] = 2**27

    changed("same", later)
    found = gate(*TWO, code=UNREADABLE)
    assert "memory limits in force" in reasons(found) and "another" in reasons(found)


@pytest.mark.parametrize("lost", [1, 6])
def test_two_campaigns_of_which_one_lost_cells(
    lost: int, gate: Any, runs: Path, stored: dict[str, Path]
) -> None:
    for arm in ("B", "C"):
        for path in cells_of(runs / stored["slower"].name, arm)[:lost]:
            shutil.rmtree(path)
    few = lost > 4
    words = ("--baseline", "baseline", "--candidate", "slower")
    found = gate(*words, code=UNREADABLE if few else REGRESSION)
    assert ("that began are lost" if few else "is lost: ") in reasons(found)
    found = gate(*words, "--margin", "20", code=UNREADABLE)  # would pass
    back = ("--baseline", "slower", "--candidate", "after")
    found = gate(*back, code=UNREADABLE if few else PASS)
    assert ("that began are lost" if few else "then: ") in reasons(found)


@pytest.mark.parametrize("which", ["all", "one"])
def test_an_output_that_is_missing_now_is_not_equal(which: str, gate: Any, changed: Any) -> None:
    def silent(r: CellRecord, data: dict[str, Any]) -> None:
        if which == "all" or r.index == 5:
            data["output_sha256"] = None

    changed("same", silent)
    found = gate(*TWO, code=UNREADABLE)
    assert "was not recorded now" in reasons(found)
    changed("baseline", lambda _, data: data.update(output_sha256=None))
    if which == "all":  # nothing was to be compared
        gate(*TWO, code=PASS)


@pytest.mark.parametrize("last", ["campaign_resumed", "campaign_interrupted", "campaign_stopped"])
def test_a_finished_campaign_that_was_resumed_is_not_at_its_end(
    last: str, gate: Any, runs: Path, stored: dict[str, Path]
) -> None:
    journal = runs / stored["same"].name / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for event in ("campaign_finished", last):
        lines.append({"event": event, "seq": len(lines), "unix_s": 9.0})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    journal.write_text(text)
    assert "did not come to its end" in reasons(gate(*TWO, code=UNREADABLE))
    finished = {"event": "campaign_finished", "seq": len(lines), "unix_s": 9.0}
    journal.write_text(text + json.dumps(finished) + "\n")
    gate(*TWO, code=PASS)


@pytest.mark.parametrize("name", ["plan.json", "config.yaml", "journal.jsonl"])
def test_a_damaged_campaign_is_an_answer_whatever_file_of_it_is_damaged(
    name: str, gate: Any, runs: Path, stored: dict[str, Path]
) -> None:
    (runs / stored["same"].name / name).write_bytes(b"[\xff\n{}\n")
    for words in (TWO, ("--candidate", "same"), ("--baseline", "same", "--candidate", "after")):
        found = gate(*words, code=UNREADABLE)
        assert name in reasons(found)


def test_a_copy_or_an_older_campaign_is_no_candidate(
    gate: Any, runs: Path, stored: dict[str, Path]
) -> None:
    copy = runs / "copy"
    shutil.copytree(runs / stored["baseline"].name, copy)
    assert "or a copy of it" in gate("--baseline", "baseline", "--candidate", copy, code=USAGE)
    line = gate("--baseline", "slower", "--candidate", "same", code=USAGE)
    assert "before the baseline" in line and line.count("2025-06-1") == 2


def test_the_same_build_as_both_arms_shows_nothing(gate: Any, changed: Any) -> None:
    def one_file(r: CellRecord, data: dict[str, Any]) -> None:
        data["identity"]["engine_sha256"] = "e" * 64

    directory = changed("win", one_file)
    plan = json.loads((directory / "plan.json").read_text())
    gate("--candidate", "win", code=PASS if _differ(plan) else UNREADABLE)
    plan["arms"]["C"] = {**plan["arms"]["B"], "name": "C"}
    (directory / "plan.json").write_text(json.dumps(plan))
    assert "ran the same build" in gate("--candidate", "win", code=UNREADABLE)["headline"]


def _differ(plan: Any) -> bool:
    b, c = ({**plan["arms"][arm], "name": ""} for arm in "BC")
    return bool(b != c)


def test_the_present_engine_is_not_the_one_that_was_given_then() -> None:
    words = [
        *("+experiment=x", "engine.binary=/old", "+cell.binary=/old", "cells.a.binary=/old"),
        *("engine.launcher=/l", "cell.n_predict=9"),
    ]
    stored = {"cells": {"a": {"binary": "/old"}, "b": {"binary": None}}}
    kept = ["+experiment=x", "cells.a.binary=null", "engine.launcher=/l", "cell.n_predict=9"]
    assert _of_present(words, stored) == kept
    inline = "cells={a:{binary:/old},b:{}}"
    assert _of_present([inline], stored) == [inline, "++cells.a.binary=null"]


# --- last-green -----------------------------------------------------------------------------------

LAST = ("--baseline", "last-green", "--candidate")


def baseline_of(found: Any, stored: dict[str, Path]) -> str | None:
    names = {path.name: name for name, path in stored.items()}
    return names.get(found["baseline"])


def test_what_was_gated_by_one_metric_is_not_green_for_another(
    gate: Any, stored: dict[str, Path]
) -> None:
    gate(*LAST, "baseline", code=UNREADABLE)
    # the first is one for every metric of it
    assert gate(*LAST, "same", "--metric", "hit_rate", code=PASS)["kind"] == "campaigns"
    gate(*LAST, "slower", "--metric", "hit_rate", code=PASS)
    found = gate(*LAST, "after", code=REGRESSION)
    assert baseline_of(found, stored) == "baseline"


def test_a_first_night_of_one_metric_overrules_no_other(
    gate: Any, runs: Path, stored: dict[str, Path]
) -> None:
    gate(*LAST, "baseline", code=UNREADABLE)
    path = runs / stored["baseline"].name / GATE
    ledger = json.loads(path.read_text())
    del ledger["gates"]["hit_rate"]  # of a version that did not know it
    path.write_text(json.dumps(ledger))
    assert gate(*LAST, "slower", "--metric", "hit_rate", code=UNREADABLE)["kind"] == "first"
    assert baseline_of(gate(*LAST, "after", code=REGRESSION), stored) == "baseline"


def test_a_regression_is_not_made_a_first_night(gate: Any, stored: dict[str, Path]) -> None:
    gate("--baseline", "baseline", "--candidate", "slower", code=REGRESSION)
    found = gate(*LAST, "slower", code=UNREADABLE)
    assert "found before, stands" in " ".join(found["notes"])
    assert gate(*LAST, "after", code=UNREADABLE)["kind"] == "first"


def test_what_passed_by_a_wide_margin_is_not_green_for_a_narrow_one(
    gate: Any, stored: dict[str, Path]
) -> None:
    gate(*LAST, "baseline", code=UNREADABLE)
    gate(*LAST, "slower", "--margin", "50", code=PASS)
    assert baseline_of(gate(*LAST, "after", code=REGRESSION), stored) == "baseline"
    found = gate(*LAST, "after", "--margin", "50", code=PASS)
    assert baseline_of(found, stored) == "slower"


def test_an_arm_that_is_accepted_makes_no_other_green(
    gate: Any, runs: Path, stored: dict[str, Path]
) -> None:
    gate(*LAST, "baseline", code=UNREADABLE)
    gate(*LAST, "slower", "--arm", "B", "--accept", code=PASS)
    ledger = json.loads((runs / stored["slower"].name / GATE).read_text())
    assert ledger["gates"]["tok_s"]["arms"] == {"B": "accepted"}
    assert baseline_of(gate(*LAST, "after", code=REGRESSION), stored) == "baseline"
    found = gate(*LAST, "after", "--arm", "B", code=PASS)
    assert baseline_of(found, stored) == "slower"
    gate(*LAST, "slower", "--accept", code=PASS)
    assert baseline_of(gate(*LAST, "after", code=PASS), stored) == "slower"


def test_accepting_one_metric_leaves_the_regression_of_another(
    gate: Any, stored: dict[str, Path]
) -> None:
    gate("--baseline", "baseline", "--candidate", "slower", code=REGRESSION)
    found = gate(*LAST, "slower", "--metric", "hit_rate", "--accept", code=PASS)
    assert "tok_s regressed; name it" in " ".join(found["notes"])


def test_what_cannot_be_accepted_is_refused(
    gate: Any, runs: Path, stored: dict[str, Path], changed: Any
) -> None:
    directory = runs / stored["same"].name
    words = ("--candidate", "same", "--accept")
    (directory / GATE).mkdir()
    assert "not accepted" in gate(*words, code=UNREADABLE)
    (directory / GATE).rmdir()
    assert "has no rss_peak_bytes" in gate(*words, "--metric", "rss_peak_bytes", code=UNREADABLE)
    journal = directory / "journal.jsonl"
    journal.write_text(journal.read_text().replace("campaign_imported", "campaign_created"))
    assert "did not come to its end" in gate(*words, code=UNREADABLE)
    assert not (directory / GATE).exists()


def test_a_later_versions_setting_at_its_default_is_the_same_configuration() -> None:
    @dataclasses.dataclass(frozen=True)
    class Later(Arm):
        novel: int | None = None

    arm = make_arm()
    later = Later(**{f.name: getattr(arm, f.name) for f in dataclasses.fields(Arm)})
    assert settings_of(later) == settings_of(arm)
    assert settings_of(dataclasses.replace(later, novel=1)) != settings_of(arm)


def test_a_sweep_is_not_gated_against_what_is_not_there(tmp_path: Path) -> None:
    state = SweepState("s", "s", (), ())
    with pytest.raises(UsageError, match="--gate TYPO: no campaign there"):
        gate_all(tmp_path, state, baseline="TYPO", margin_pct=3.0)
