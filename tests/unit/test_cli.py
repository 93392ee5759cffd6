"""The command line as a subprocess: verbs, flags, errors, exit codes, no heavy imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import harness

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
        timeout=60,
        check=False,
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def refused(*args: str, cwd: Path) -> str:
    """The one line on stderr of a command that is refused with nothing on stdout, nothing made."""
    before = sorted(cwd.rglob("*"))
    done = run(*args, cwd=cwd, code=2)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("harness: error: ")
    assert sorted(cwd.rglob("*")) == before, "something was made"
    return line


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


def test_cfg_checks_as_a_run_would(tmp_path: Path) -> None:
    line = refused("--cfg", "job", SIZES, "cell.n_predict=0", cwd=tmp_path)
    assert "cell.n_predict: 0" in line


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], ["matched_pair", "+experiment=NAME"]),
        (["nonsense"], ["nonsense", "build", "model"]),
        (["modle", "list"], ["modle", "did you mean 'model'"]),
        (["doctor"], ["doctor", "build, import, model, power"]),
        (["--foo"], ["--foo", "--help"]),
        (["--cfg"], ["--cfg job"]),
        (["--cfg", "hydra", SIZES], ["--cfg hydra", "--cfg job"]),
        (["-m", SIZES], ["-m", "sweeps"]),
        (["--multirun", SIZES], ["--multirun", "sweeps"]),
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
    args: list[str], words: list[str], tmp_path: Path
) -> None:
    line = refused(*args, cwd=tmp_path)
    for word in words:
        assert word in line


def test_a_runs_dir_that_is_a_file_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    assert "not a directory" in refused(SIZES, cwd=tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_runs_dir_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir(mode=0o500)
    assert "cannot be written" in refused(SIZES, cwd=tmp_path)


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
    [(["--help"], set()), (["--version"], set()), (["--cfg", "job", SIZES], {"hydra", "yaml"})],
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
