"""A user's mistake gets one clear line, exit code 2, and nothing is started."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

REPO = Path(__file__).resolve().parents[2]
REFERENCE = REPO / "harness/models/data/reference-q4_k_m.gguf"


def harness(
    *args: str, env: dict[str, str] | None = None, timeout: float = 600
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", *args],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, **(env or {})},
    )


def truncated(tmp: Path) -> Path:
    path = tmp / "truncated.gguf"
    path.write_bytes(REFERENCE.read_bytes()[:-4096])
    return path


def not_a_gguf(tmp: Path) -> Path:
    path = tmp / "text.gguf"
    path.write_text("this is a text\n" * 100)
    return path


def not_moe(tmp: Path) -> Path:
    import numpy as np
    from gguf import GGUFWriter

    path = tmp / "dense.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(32)
    writer.add_tensor("token_embd.weight", np.zeros((8, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def check_refused(
    done: subprocess.CompletedProcess[str], runs: Path, words: str, code: int = 2
) -> None:
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
    assert len(lines) == 1, done.stderr
    assert re.search(words, lines[0]), lines[0]
    assert not list(runs.glob("*/cells/*")), "a cell was started"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["+experiment=matched_par"], r"matched_par.*matched_pair"),
        (["+experiment=matched_pair", "schedule.spacing=3"], r"schedule\.spacing\b.*spacing_s"),
        (["+experiment=matched_pair", "shedule.spacing_s=3"], r"shedule.*schedule"),
        (["+experiment=matched_pair", "cells.spec2.engine.cache_mb=-1"], r"cache_mb.*-1"),
        (["+experiment=matched_pair", "cell.n_predict=many"], r"n_predict.*many"),
        (["+experiment=matched_pair", "schedule.spacing_s=-1"], r"spacing_s"),
        (["+experiment=matched_pair", "model=referenc"], r"referenc.*reference"),
        (["+experiment=matched_pair", "model=path", "model.path=/no/such.gguf"], r"/no/such\.gguf"),
        ([], r"matched_pair"),
        (["nonsense"], r"nonsense"),
    ],
)
def test_mistakes_in_the_configuration(args: list[str], words: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    check_refused(harness(*args, f"runs_dir={runs}"), runs, words)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (truncated, r"truncated"),
        (not_a_gguf, r"not a GGUF"),
        (not_moe, r"(?i)not .*moe|no .*expert"),
    ],
)
def test_models_that_cannot_be_used(
    make: Callable[[Path], Path], words: str, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    path = make(tmp_path)
    done = harness(
        "+experiment=matched_pair", "model=path", f"model.path={path}", f"runs_dir={runs}"
    )
    check_refused(done, runs, words)
    assert str(path) in done.stderr


def test_a_cap_below_what_the_engine_needs_names_both_numbers(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    done = harness("+experiment=matched_pair", "memory.limit_mb=24", f"runs_dir={runs}")
    check_refused(done, runs, r"\d{7,}.*25165824|25165824.*\d{7,}")


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    empty = tmp_path / "bin"
    empty.mkdir()
    done = harness(
        "+experiment=matched_pair",
        f"runs_dir={runs}",
        env={"PATH": str(empty), "XDG_CACHE_HOME": str(tmp_path / "cache"), "CXX": "", "CC": ""},
    )
    check_refused(done, runs, r"(?i)compiler.*(g\+\+|CXX)")


def test_a_full_disk_loses_nothing_that_was_recorded(tmp_path: Path) -> None:
    """A small real filesystem (tmpfs) that fills up during the campaign."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=900k", "none", str(small)]
    if subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("this machine does not allow mounting a tmpfs")
    try:
        done = harness(
            "+experiment=matched_pair",
            f"runs_dir={small}",
            "schedule.spacing_s=1",
            "tracking.enabled=false",
        )
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        if done.returncode == 0:  # it fitted: fill the rest and run again
            filler = small / "filler"
            with filler.open("wb", buffering=0) as f, pytest.raises(OSError):
                while True:
                    f.write(b"x" * 65536)
            done = harness(
                "+experiment=matched_pair",
                f"runs_dir={small}",
                "schedule.spacing_s=1",
                "tracking.enabled=false",
            )
            lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        assert done.returncode in {1, 2}, (done.stdout, done.stderr)
        assert len(lines) == 1, done.stderr
        assert re.search(r"(?i)no space|disk full|full", lines[0])
        assert "Traceback" not in done.stderr
        # whatever the journals say is finished is there, whole
        for journal in small.glob("*/journal.jsonl"):
            for line in journal.read_text().splitlines():
                try:
                    event = json.loads(line)
                except json.JSONDecodeError:
                    continue
                if event["event"] == "cell_finished":
                    assert list(journal.parent.glob("cells/*/record.json"))
    finally:
        subprocess.run(["umount", str(small)], check=False)


@pytest.mark.parametrize("args", [["--help"], ["--cfg", "job", "+experiment=matched_pair"]])
def test_help_and_configuration_answer_without_heavy_imports(args: list[str]) -> None:
    """No wall time asserted: what costs it, the imports, is."""
    code = f"""
import sys, runpy
sys.argv = {["harness", *args]!r}
try:
    runpy.run_module("harness", run_name="__main__")
except SystemExit as stop:
    assert not stop.code, stop.code
heavy = {{"mlflow", "pandas", "numpy", "paramiko", "matplotlib", "gguf"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
