"""A campaign's directory and its verdict: the same each time, and clear where it is damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from imported_parts import imported_pairs

from harness.cli import main
from harness.configure import load_yaml
from harness.journal import Journal, json_sha256
from harness.judgement import CREATED, Measured, config_sha256, final_command, judge_directory
from harness.schema import VerdictConfig


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return imported_pairs(tmp_path_factory.mktemp("imported"))


@pytest.fixture
def campaign(imported: Path, tmp_path: Path) -> Path:
    """A copy to be spoilt."""
    copy = tmp_path / "copy"
    shutil.copytree(imported, copy)
    return copy


def report(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main(["report", *words]) == code
    shown = capsys.readouterr()
    return shown.out if code == 0 else shown.err


def test_a_verdict_is_the_same_from_disk(
    imported: Path, campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge_directory(imported).verdicts[0].outcome == "loss"
    assert "the same as" in report(capsys, str(imported))
    assert "the same as" in report(capsys, str(campaign)), "a copy has another name"
    by_id = report(capsys, imported.name, "--runs-dir", str(imported.parent), "--json")
    assert json.loads(by_id) == json.loads((imported / "verdict.json").read_text())


def test_a_verdict_that_was_tampered_with_is_told(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = campaign / "verdict.json"
    stored: dict[str, Any] = json.loads(path.read_text())
    stored["verdicts"][0]["outcome"] = "win"
    path.write_text(json.dumps(stored))
    assert "differs from" in report(capsys, str(campaign))
    assert "in: verdicts" in report(capsys, str(campaign))
    path.unlink()
    assert "there is no verdict.json" in report(capsys, str(campaign))


def test_a_record_that_was_changed_is_left_out_and_told(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sorted(campaign.glob("cells/*/record.json"))[2]
    path.write_text(path.read_text().replace('"ok"', '"killed"'))
    out = report(capsys, str(campaign))
    assert "cell 2 is left out" in out
    assert "changed since it was written" in out


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[: len(text) * 8 // 10], "of 96 tokens"),
        (lambda text: text.replace("\n40,", "\n40,x"), "1 token without a wall time"),
        (lambda text: text.replace("\n40,", "\n40,9"), "are not the"),
    ],
)
def test_a_table_of_tokens_that_is_not_its_records_leaves_the_cell_out(
    campaign: Path, capsys: pytest.CaptureFixture[str], damage: Any, words: str
) -> None:
    path = sorted(campaign.glob("cells/*/tokens.csv"))[2]
    path.write_text(damage(path.read_text()))
    out = report(capsys, str(campaign))
    assert "cell 2 is left out" in out
    assert words in out


def test_without_a_journal_nothing_says_what_was_finished(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (campaign / "journal.jsonl").unlink()
    shown = report(capsys, str(campaign), code=2)
    assert "journal.jsonl: there is no such file" in shown


def test_tokens_that_are_gone_leave_the_cell_out(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is lost must never make a verdict better."""
    first, second, *_ = sorted(campaign.glob("cells/*/tokens.csv"))
    first.unlink()
    second.write_text("")
    out = report(capsys, str(campaign))
    assert "cell 0 is left out" in out and "is gone, or empty" in out
    assert "cell 1 is left out" in out


def test_a_plan_that_is_not_what_the_campaign_began_with_is_refused(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = campaign / "plan.json"
    stored = json.loads(path.read_bytes())
    journal = campaign / "journal.jsonl"
    lines = journal.read_text().splitlines()
    began = {
        "seq": len(lines),
        "unix_s": 1.0,
        "event": "campaign_started",
        "plan_sha256": json_sha256(stored),
    }
    journal.write_text("\n".join([*lines, json.dumps(began)]) + "\n")
    assert "the same as" in report(capsys, str(campaign))
    stored["baseline"], stored["candidates"] = "C", ["B"]
    path.write_text(json.dumps(stored))
    shown = report(capsys, str(campaign), code=2)
    assert "plan.json: is not what the campaign was started with" in shown


def test_a_configuration_that_is_not_what_the_campaign_began_with_is_refused(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, journal = campaign / "config.yaml", campaign / "journal.jsonl"
    text, lines = path.read_text(), journal.read_text().splitlines()
    created = {"event": CREATED, "config_sha256": config_sha256(load_yaml(path))}
    lines.append(json.dumps({"seq": len(lines), "unix_s": 1.0, **created}))
    journal.write_text("\n".join(lines) + "\n")
    path.write_text(f"{text}tracking: {{uri: http://moved.example}}\n")
    assert "tok/s" in report(capsys, str(campaign))
    path.write_text(f"{text}verdict: {{margin_pct: 50}}\n")
    shown = report(capsys, str(campaign), code=2)
    assert "config.yaml: is not what the campaign was started with" in shown
    path.write_text("")
    assert "config.yaml: is empty" in report(capsys, str(campaign), code=2)


def test_an_imported_campaign_is_not_resumed(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"resume={campaign}"]) == 2
    assert "was imported; there is nothing to run in it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("plan.json", "{", "plan.json: cannot be read"),
        (
            "plan.json",
            '{"design": "x", "arms": {}, "cells": [], "baseline": "B", "candidates": []}',
            "plan.json: design: found 'x'; needs one of four_cell",
        ),
        ("config.yaml", "verdict: {stable: 3}", "config.yaml: verdict.stable: unknown key"),
        ("config.yaml", "verdict: 3", "config.yaml: verdict: found 3"),
        ("config.yaml", "a: [", "config.yaml: not readable as YAML"),
        ("journal.jsonl", "{}\n{}\n", "journal.jsonl: line 1 is damaged"),
        ("journal.jsonl", "", "journal.jsonl: is empty, but there are cells"),
        ("config.yaml", "[1]", "config.yaml: found a list; needs keys and values"),
    ],
)
def test_a_damaged_file_is_one_line(
    campaign: Path, capsys: pytest.CaptureFixture[str], file: str, content: str, words: str
) -> None:
    (campaign / file).write_text(content)
    shown = report(capsys, str(campaign), code=1 if content == "{}\n{}\n" else 2)
    assert shown.startswith("harness: error: ")
    assert words in shown
    assert len(shown.splitlines()) == 1


def test_what_is_no_campaign_names_the_nearest(
    imported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = imported.name[:-1] + "x"
    shown = report(capsys, wrong, "--runs-dir", str(imported.parent), code=2)
    assert f"report {wrong}: no campaign there" in shown
    assert imported.name in shown


def test_a_setting_stored_with_the_campaign_is_heeded(campaign: Path) -> None:
    config = campaign / "config.yaml"
    assert Measured.read(campaign).settings.margin_pct == 3
    config.write_text(config.read_text() + "\nverdict: {margin_pct: 5}\n")
    settings = Measured.read(campaign).settings
    assert isinstance(settings, VerdictConfig)
    assert settings.margin_pct == 5
    assert settings.stable_pct == 5  # what is not stored is the default


def test_the_way_to_a_final_verdict_is_a_command_that_runs(
    tmp_path: Path,
) -> None:
    """A quick session may decode fewer tokens than a verdict of pairs takes."""
    directory = tmp_path / "20261130T120000Z-x-0000"
    directory.mkdir()
    words = ["+experiment=matched_pair", "cell.n_predict=48", "cells.spec2.n_predict=96"]
    with Journal.open(directory) as journal:
        journal.append(CREATED, overrides=[*words, "design=four_cell", "verdict.margin_pct=4"])
    command = final_command(directory)
    assert command is not None
    kept = ["+experiment=matched_pair", "cells.spec2.n_predict=96", "verdict.margin_pct=4"]
    assert command.split() == ["python", "-m", "harness", *kept, "design=pairs"]
