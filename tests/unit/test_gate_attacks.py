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
from gate_parts import night

from harness.cli import main
from harness.records import CellRecord, GivenBinary

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
