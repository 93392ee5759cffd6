"""The command line: verbs, flags, errors, exit codes, no heavy imports.

As a subprocess where the process is the matter: streams, imports, how it is started. A start takes
half a second of a core, so the many mistakes are made in this process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

import harness
from harness import configure
from harness.cli import main

REPO = Path(__file__).resolve().parents[2]
SIZES = "+experiment=cache_sizes"
SIZED = "cells.cache_half.engine={cache_mb: 64, cache_fraction: null}"
ROUTES = "cells.cache_half.engine.forced_routes"


def run(*args: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "harness", *args],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def one_line(stdout: str, stderr: str) -> str:
    """The one line on stderr of a command that is refused."""
    assert stdout == ""
    (line,) = stderr.splitlines()
    assert line.startswith("harness: error: ")
    return line


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., str]]:
    """What a command in this process says as it is refused, with nothing made.

    What the command does not catch is an exception here: no line passes for a traceback.
    """
    monkeypatch.chdir(tmp_path)
    on_term, stdout = signal.getsignal(signal.SIGTERM), sys.stdout

    def refuse(*args: str) -> str:
        before = sorted(tmp_path.rglob("*"))
        assert main(args) == 2
        sys.stdout = stdout
        line = one_line(*capsys.readouterr())
        assert sorted(tmp_path.rglob("*")) == before, "something was made"
        return line

    yield refuse
    sys.stdout = stdout
    signal.signal(signal.SIGTERM, on_term)


def test_help_names_experiments_verbs_groups_and_exit_codes(tmp_path: Path) -> None:
    text = run("--help", cwd=tmp_path).stdout
    for word in ("matched_pair", "build", "model", "plan_only", "resume=", "memory", "130"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 110
    assert run("-h", cwd=tmp_path).stdout == text


def test_version(tmp_path: Path) -> None:
    assert harness.__version__ in run("--version", cwd=tmp_path).stdout


def test_cfg_prints_the_composed_configuration_as_yaml(tmp_path: Path) -> None:
    text = run("--cfg", "job", SIZES, "schedule.spacing_s=2", cwd=tmp_path).stdout
    data = yaml.safe_load(text)
    assert data["schedule"]["spacing_s"] == 2
    assert data["cells"]["cache_half"]["engine"]["cache_fraction"] == 0.5
    assert "\x1b" not in text
    assert not list(tmp_path.iterdir())


def test_cfg_without_an_experiment_prints_the_defaults(tmp_path: Path) -> None:
    assert yaml.safe_load(run("-c", "job", cwd=tmp_path).stdout)["cells"] == {}


def test_info_lists_every_experiment_with_its_question(tmp_path: Path) -> None:
    lines = run("--info", cwd=tmp_path).stdout.splitlines()
    rows = json.loads(run("--info", "--json", cwd=tmp_path).stdout)
    names = configure.options(configure.conf_dir(), "experiment")
    assert [row["name"] for row in rows] == names
    for row, line in zip(rows, lines, strict=False):
        assert line.split(maxsplit=1) == [row["name"], row["question"]]
        assert row["question"].endswith("?")
        assert row["command"] == f"python -m harness +experiment={row['name']}"


def test_info_says_all_about_one(tmp_path: Path) -> None:
    text = run("--info", "matched_pair", cwd=tmp_path).stdout
    for phrase in (
        "Does predicting experts pay?",
        "The sentinel repeats the baseline to the byte.",
        "design four_cell, 4 cells; model reference Q4_K_M",
        "read ahead",
        "time expected: 1 min 30 s of waits",
        "run: python -m harness +experiment=matched_pair",
    ):
        assert phrase in text
    changed = ("schedule.spacing_s=0", "cells.retention.engine.io_threads=4")
    facts = json.loads(run("--info", "matched_pair", *changed, "--json", cwd=tmp_path).stdout)
    assert facts["arms"]["retention"] == {"io threads": "4", "read ahead": "predict 0"}
    assert (facts["expected_s"], facts["unknown_cells"]) == (0, 4)
    night = json.loads(run("--info", "nightly", "--json", cwd=tmp_path).stdout)
    assert night["campaigns"][0] == "experiment=identity"
    assert not list(tmp_path.iterdir())


def test_cfg_checks_as_a_run_would(refused: Callable[..., str]) -> None:
    assert "cell.n_predict: 0" in refused("--cfg", "job", SIZES, "cell.n_predict=0")


def test_a_process_that_is_refused_ends_with_the_line(tmp_path: Path) -> None:
    done = run("+experiment=matched_par", cwd=tmp_path, code=2)
    assert "'matched_pair'" in one_line(done.stdout, done.stderr)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], ["matched_pair", "+experiment=NAME"]),
        (["nonsense"], ["nonsense", "build", "model"]),
        (["modle", "list"], ["modle", "did you mean 'model'"]),
        (["doctr"], ["doctr", "did you mean 'doctor'"]),
        (["--foo"], ["--foo", "--help"]),
        (["--cfg"], ["--cfg job"]),
        (["--cfg", "hydra", SIZES], ["--cfg hydra", "--cfg job"]),
        (["-m"], ["+experiment=NAME"]),
        (["--multirun=3", SIZES], ["--multirun takes no value"]),
        (["-m", "--cfg", "job", SIZES], ["-m", "plan_only=true"]),
        (["-m", "resume=a,b"], ["'resume=a,b'", "one value"]),
        (["-m", "resume=nothing"], ["-m: resume=", "leave -m out"]),
        (["-m", SIZES, "hydra.sweep.dir=x,y"], ["hydra.sweep.dir", "leave it out"]),
        (["-m", "--info"], ["-m", "plan_only=true"]),
        (["-m", SIZES, "memory=uncapped,halff"], ["2 of 2 (memory=halff)", "'half'"]),
        (["-m", "+experiment=cache_size,aa"], ["1 of 2", "'cache_sizes'"]),
        ([SIZES, "schedule.spacing_s=1,2"], ["schedule.spacing_s=1,2", "-m"]),
        (["+experiment=nightly", "nightly.entries=[{experiment: aaa}]"], ["entries[0]", "'aa'"]),
        (["+experiment=nightly", "schedule.spacing=1"], ["1 of 12", "'schedule.spacing_s'"]),
        (["+experiment=nightly", "nightly.budget=1"], ["'nightly.budget_s'"]),
        (["--cfg", "job", "+experiment=nightly", "nightly.budget_s=-1"], ["budget_s: -1"]),
        ([SIZES, "nightly.budget_s=1"], ["nightly.budget_s", "+experiment=nightly"]),
        (["--info", "cache_size"], ["'cache_sizes'"]),
        (["--info", "cache_sizes", "cell.n_contxt=1"], ["'cell.n_ctx'"]),
        (["--info", SIZES], ["--info NAME"]),
        (["--json", SIZES], ["--json", "--info"]),
        (["sweep", "last"], ["no sweep in runs/"]),
        (["sweep", "nothing"], ["sweep nothing", "no sweep"]),
        (["+experiment=matched_par"], ["'matched_pair'"]),
        ([SIZES, "schedule.spacing=3"], ["schedule.spacing:", "schedule.spacing_s"]),
        ([SIZES, "cells.cache_half.engine.cache_mb=-1"], ["cache_mb: -1"]),
        ([SIZES, SIZED, f"{ROUTES}=/no/such"], ["forced_routes: /no/such: there is no such file"]),
        (
            [SIZES, SIZED, f"{ROUTES}=/"],
            ["cells.cache_half.engine.forced_routes: /: is not a file"],
        ),
        ([SIZES, "model=path"], ["model.path"]),
        ([SIZES, "model=path", "model.path=/no/such.gguf"], ["/no/such.gguf"]),
        (["resume=nothing"], ["resume=nothing", "no campaign"]),
        (["resume=20261129T200533Z-x-12ab", "+experiment=cache_sizes"], ["no campaign"]),
    ],
)
def test_a_mistake_is_one_line_and_starts_nothing(
    args: list[str], words: list[str], refused: Callable[..., str]
) -> None:
    line = refused(*args)
    for word in words:
        assert word in line


def test_a_runs_dir_that_is_a_file_is_refused_before_anything_is_built(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / "runs").write_text("")
    assert "not a directory" in refused(SIZES)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_runs_dir_that_cannot_be_written_is_refused(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / "runs").mkdir(mode=0o500)
    assert "cannot be written" in refused(SIZES)


@pytest.mark.parametrize("verb", ["build", "model"])
def test_every_verb_has_help(verb: str, tmp_path: Path) -> None:
    assert f"harness {verb}" in run(verb, "--help", cwd=tmp_path).stdout


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m harness --help | head -1"
    done = subprocess.run(
        ["bash", "-c", command], cwd=REPO, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("args", "allowed"),
    [
        (["--help"], set()),
        (["--version"], set()),
        (["--info"], set()),
        (["--cfg", "job", SIZES], {"hydra", "yaml"}),
    ],
)
def test_quick_answers_import_little(args: list[str], allowed: set[str], tmp_path: Path) -> None:
    """Wall time is not asserted, what costs it is: hydra 0.2 s, rich, numpy, mlflow more."""
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['harness', *{args!r}]\n"
        "try:\n    runpy.run_module('harness', run_name='__main__')\n"
        "except SystemExit as stop:\n    assert not stop.code\n"
        "print('IMPORTED', *{name.split('.')[0] for name in sys.modules})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True
    )
    imported = set(done.stdout.splitlines()[-1].split())
    heavy = {"hydra", "yaml", "rich", "mlflow", "pandas", "numpy", "paramiko", "gguf", "argparse"}
    heavy -= {"argparse"} if "hydra" in allowed else set()
    assert imported & heavy <= allowed


@pytest.mark.parametrize("args", [["--help"], ["model", "list"]])
def test_a_full_standard_output_is_one_line_not_a_traceback(args: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "harness", *args],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "harness: standard output is gone (No space left on device); going on without it"
    ]


def test_a_closed_standard_output_is_no_error() -> None:
    line = [sys.executable, "-m", "harness", "--help"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *line], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
