"""The nightly's workflow and what it runs besides the harness, with a made-up `gh`."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / ".github" / "nightly"
WORKFLOW = ROOT / ".github" / "workflows" / "nightly.yml"

if not WORKFLOW.is_file():
    pytest.skip("not a checkout: .github/ is not part of the package", allow_module_level=True)


@pytest.fixture(scope="module")
def workflow() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text())
    return read


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_the_workflows_are_what_github_reads() -> None:
    """By GitHub's own schema, which check-jsonschema brings along."""
    pytest.importorskip("check_jsonschema", reason="needs check-jsonschema, of the extra `test`")
    files = map(str, sorted(WORKFLOW.parent.glob("*.yml")))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "check_jsonschema"),
            *("--builtin-schema", "vendor.github-workflows", *files),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_runs_each_night_and_by_hand(workflow: dict[str, Any]) -> None:
    triggers = workflow[True]  # YAML 1.1 reads `on` so
    assert set(triggers) == {"schedule", "workflow_dispatch"}, "nobody else's code starts it"


def test_nothing_from_outside_is_put_into_a_script(workflow: dict[str, Any]) -> None:
    """By its environment alone, where it is a value and no code."""
    for step in steps(workflow):
        assert "${{" not in step.get("run", "")
        for name in re.findall(r"\$\{?([A-Z_]+)", step.get("run", "")):
            assert name in step["env"], f"${name} of {step['run']}"
            assert f'"${name}"' in step["run"], f"${name} is not quoted"


def test_each_job_may_do_what_it_needs_and_no_more(workflow: dict[str, Any]) -> None:
    assert workflow["permissions"] == {}
    jobs = workflow["jobs"]
    assert jobs["measure"]["permissions"] == {"contents": "read", "actions": "read"}
    assert jobs["tell"]["permissions"] == {"contents": "read", "issues": "write"}
    assert not [s for s in jobs["tell"]["steps"] if "harness" in s.get("run", "")]
    for step in steps(workflow):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_what_it_runs_is_there_and_takes_these_words(workflow: dict[str, Any]) -> None:
    found = [m for s in steps(workflow) for m in re.findall(r"\.github/\S+\.py", s.get("run", ""))]
    assert {Path(f).name for f in found} == {p.name for p in SCRIPTS.glob("*.py")}
    for path in SCRIPTS.glob("*.py"):
        done = subprocess.run(
            [sys.executable, path, "--help"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_artifacts_are_kept_for_as_long_as_github_may(workflow: dict[str, Any]) -> None:
    kept = [s["with"] for s in steps(workflow) if "upload-artifact@" in s.get("uses", "")]
    assert {w["name"]: w["retention-days"] for w in kept} == {
        "nightly-history": 90,
        "nightly-report": 90,
    }
    assert module("history").ARTIFACT in {w["name"] for w in kept}
    assert module("history").ARCHIVE in {w["path"] for w in kept}


# --- a made-up gh --------------------------------------------------------------------------------


def module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"nightly_{name}", SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


class Gh:
    """A `gh` first on PATH: notes its words, then does as a piece of shell says."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.words = path / "words.txt"
        self.bin = path / "bin"
        self.bin.mkdir()
        monkeypatch.setenv("PATH", f"{self.bin}{os.pathsep}{os.environ['PATH']}")

    def does(self, script: str) -> None:
        gh = self.bin / "gh"
        gh.write_text(f'#!/bin/sh\necho "$*" >>{self.words}\n{script}\n')
        gh.chmod(gh.stat().st_mode | stat.S_IXUSR)

    @property
    def said(self) -> list[str]:
        return self.words.read_text().splitlines() if self.words.exists() else []


@pytest.fixture
def gh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gh:
    return Gh(tmp_path, monkeypatch)


def night(runs: Path, day: int, *campaigns: str) -> None:
    """A sweep of that day, and its campaigns, as far as the history looks at them."""
    for name, file in (("sweep-nightly", "campaigns.json"), *((c, "plan.json") for c in campaigns)):
        directory = runs / f"202611{day:02d}T010000Z-{name}-3fa9"
        directory.mkdir(parents=True)
        (directory / file).write_text("{}")


def test_the_history_is_what_the_newest_run_that_keeps_one_left(gh: Gh, tmp_path: Path) -> None:
    history = module("history")
    night(tmp_path / "runs", 3, "aa")
    assert history.main(["--runs-dir", str(tmp_path / "runs"), "pack", str(tmp_path / "h.gz")]) == 0
    # the newest run was cancelled before it kept anything
    gh.does(
        'case "$1 $2" in\n'
        """"run list") echo '[{"databaseId": 30}, {"databaseId": 20}, {"databaseId": 10}]' ;;\n"""
        f'"run download") [ "$3" = 20 ] && cp {tmp_path}/h.gz "$7/history.tar.gz" ;;\n'
        "esac"
    )
    there = tmp_path / "there" / "runs"
    there.parent.mkdir()
    words = ["--runs-dir", str(there), "restore", "--workflow", "nightly.yml", "--branch", "main"]
    assert history.main(words) == 0
    assert sorted(p.name for p in there.iterdir()) == [
        "20261103T010000Z-aa-3fa9",
        "20261103T010000Z-sweep-nightly-3fa9",
    ]
    assert [w.split()[:3] for w in gh.said[1:]] == [["run", "download", n] for n in ("30", "20")]
    assert "--branch main --status completed" in gh.said[0]
    assert not [p for p in there.parent.iterdir() if p != there], "nothing half unpacked is left"


@pytest.mark.parametrize(
    ("script", "expected"),
    [("echo '[]'", (0, "this night is the first")), ("exit 4", (1, ""))],
)
def test_without_a_history_the_night_is_the_first_but_a_failing_gh_is_no_such_thing(
    gh: Gh,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    script: str,
    expected: tuple[int, str],
) -> None:
    code, words = expected
    gh.does(script)
    asked = ["--runs-dir", str(tmp_path / "runs"), "restore", "--workflow", "w", "--branch", "b"]
    assert module("history").main(asked) == code
    assert words in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


def test_a_runner_that_keeps_its_runs_fetches_nothing(gh: Gh, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    asked = ["--runs-dir", str(tmp_path / "runs"), "restore", "--workflow", "w", "--branch", "b"]
    assert module("history").main(asked) == 0
    assert gh.said == []


def test_nights_beyond_those_kept_go_with_their_campaigns(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for day in range(1, 6):
        night(runs, day, "aa", "io_lanes")
    (runs / "mlartifacts").mkdir()
    gone = module("history").forget(runs, 2)
    assert len(gone) == 9
    assert {p.name[:8] for p in runs.iterdir() if p.name != "mlartifacts"} == {
        "20261104",
        "20261105",
    }
    assert module("history").forget(runs, 2) == []


@pytest.mark.slow
def test_what_is_gone_is_gone_from_mlflow_too(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    runs = tmp_path / "runs"
    for day in (1, 2):
        night(runs, day, "aa")
    client = MlflowClient(f"sqlite:///{runs / 'mlflow.db'}")
    location = (runs / "mlartifacts").as_uri()
    experiment = client.create_experiment("aa", artifact_location=location)
    for day in (1, 2):
        moment = f"202611{day:02d}T010000Z"
        run = client.create_run(experiment, tags={"harness.campaign": f"{moment}-aa-3fa9"})
        client.log_text(run.info.run_id, "x", "file.txt")
        of_night = {"harness.kind": "sweep", "harness.sweep": f"{moment}-sweep-nightly-3fa9"}
        client.create_run(experiment, tags=of_night)
    assert len(list((runs / "mlartifacts").iterdir())) == 2
    module("history").forget(runs, 1)
    left = client.search_runs([experiment], run_view_type=3)  # deleted ones as well
    (campaign,) = [r for r in left if "harness.campaign" in r.data.tags]
    (of_night,) = [r.data.tags for r in left if r is not campaign]
    assert campaign.data.tags["harness.campaign"] == "20261102T010000Z-aa-3fa9"
    assert of_night["harness.sweep"] == "20261102T010000Z-sweep-nightly-3fa9"
    assert [p.name for p in (runs / "mlartifacts").iterdir()] == [campaign.info.run_id]


ISSUES: list[tuple[str, Callable[[list[str]], bool]]] = [
    ("[]", lambda said: said[-1].startswith("issue create --title") and "label create" in said[-2]),
    ('[{"number": 7}, {"number": 5}]', lambda said: said[-1].startswith("issue comment 5 --body")),
]


@pytest.mark.parametrize(("open_ones", "expected"), ISSUES)
def test_a_regression_opens_an_issue_or_adds_to_the_one_that_is_open(
    gh: Gh, tmp_path: Path, open_ones: str, expected: Callable[[list[str]], bool]
) -> None:
    body = tmp_path / "body.md"
    gh.does(
        f"""[ "$1 $2" = "issue list" ] && echo '{open_ones}'\n"""
        f'for f; do [ -f "$f" ] && cp "$f" {body}; done; exit 0'
    )
    page = tmp_path / "gate.md"
    page.write_text("# it is slower: `$(touch /tmp/x)`; " + "long " * 20_000)
    assert module("issue").main(["--page", str(page), "--run", "https://x/1"]) == 0
    assert expected(gh.said)
    assert not [w for w in gh.said if "slower" in w], "the page is no word of a command"
    text = body.read_text()
    assert text.startswith("# it is slower: `$(touch /tmp/x)`")
    assert "(cut: the rest is in the run's artifacts)" in text
    assert text.endswith("Run, and its artifacts: https://x/1\n")
    assert len(text) < 65_536


# --- one night -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codes", "code", "regressed"),
    [
        ((0, 0), 0, "false"),
        ((0, 1), 1, "true"),
        ((0, 3), 0, "false"),
        ((1, 3), 1, "false"),
        ((130, 1), 130, "true"),
        ((0, 2), 2, "false"),
    ],
)
def test_a_night_that_cannot_be_read_is_no_regression(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    codes: tuple[int, int],
    code: int,
    regressed: str,
) -> None:
    """A made-up harness: which exit code of the night comes of those of its two commands."""
    ran, gate = codes
    night = module("night")
    harness = tmp_path / "harness.py"
    answers = {"gate": [{"campaign": "aa", "headline": "Pass"}]}
    harness.write_text(
        "import sys, pathlib\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n"
        "if sys.argv[1] == 'sweep':\n"
        "    words = dict(zip(sys.argv, sys.argv[1:]))\n"
        "    pathlib.Path(words['--md']).write_text('night')\n"
        f"    print({json.dumps(answers)!r})\n"
        f"    sys.exit({gate})\n"
        "(here / 'runs' / 'new').mkdir(parents=True)\n"
        "(here / 'runs' / 'new' / 'campaigns.json').write_text('{}')\n"
        "(here / 'asked.txt').write_text(' '.join(sys.argv[1:]))\n"
        f"sys.exit({ran})\n"
    )
    monkeypatch.setattr(night, "HARNESS", [sys.executable, str(harness)])
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        monkeypatch.setenv(name, str(tmp_path / name))
    words = ["--out", str(tmp_path / "out"), "--runs-dir", str(tmp_path / "runs")]
    assert night.main([*words, "--budget-s", "60", "target=phone"]) == code
    assert (tmp_path / "GITHUB_OUTPUT").read_text() == f"regressed={regressed}\n"
    assert "night" in (tmp_path / "GITHUB_STEP_SUMMARY").read_text()
    asked = (tmp_path / "asked.txt").read_text()
    assert asked.startswith("+experiment=nightly runs_dir=")
    assert asked.endswith("target=phone nightly.budget_s=60")


def test_a_night_that_did_not_start_shows_no_other_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    night_of = module("night")
    night(tmp_path / "runs", 1)
    monkeypatch.setattr(night_of, "HARNESS", [sys.executable, "-c", "import sys; sys.exit(2)"])
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    words = ["--out", str(tmp_path / "out"), "--runs-dir", str(tmp_path / "runs")]
    assert night_of.main(words) == 2
    assert "did not start" in (tmp_path / "summary").read_text()
