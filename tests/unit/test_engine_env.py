"""Engines that the harness starts see no EPQ_* variable of the user's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cell_parts import make_arm

from harness.build.engine import version_line
from harness.device.preflight import memory_plan, scratch_dir
from harness.engine_env import clean_argv, engine_environment
from harness.errors import DeviceError
from harness.targets.local import LocalTarget
from harness.verify.engine_run import dump_layer


@pytest.fixture
def strict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that answers as the engine does, and fails where it sees an EPQ_* variable."""
    for name in ("PAGER", "STATS_FILE", "BENCH_NO_EOG", "EXPERT_USED", "FOO"):
        monkeypatch.setenv(f"EPQ_{name}", "2")
    program = tmp_path / "engine"
    program.write_text(
        "#!/bin/sh\n"
        'if env | grep -q "^EPQ_"; then echo "moe-engine: error: EPQ_" >&2; exit 2; fi\n'
        "echo '{\"needed_bytes\": 7}'\n"
    )
    program.chmod(0o755)
    return program


def test_only_what_an_engine_would_read_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPQ_PAGER", "0")
    monkeypatch.setenv("OWN_EPQ_PAGER", "0")
    assert "EPQ_PAGER" not in engine_environment()
    assert engine_environment()["OWN_EPQ_PAGER"] == "0"


def test_the_preflight_does_not_hand_them_on(strict: Path) -> None:
    target = LocalTarget("here")
    with scratch_dir(target, Path("campaign")) as scratch:
        plan = memory_plan(target, strict, Path("m.gguf"), make_arm(), scratch)
    assert plan == {"needed_bytes": 7}
    assert not Path(scratch).exists()


def test_nor_does_it_where_a_login_sets_them(strict: Path) -> None:
    """As over ssh: the environment is the login's, and not ours to choose."""
    argv = ["-a b", "$(x)", "it's", ""]
    as_it_is = subprocess.run([str(strict)], check=False, capture_output=True)
    assert as_it_is.returncode == 2
    done = subprocess.run(clean_argv([str(strict)]), check=False, capture_output=True)
    assert done.returncode == 0
    done = subprocess.run(
        clean_argv(["printf", "%s|", *argv]), check=True, capture_output=True, text=True
    )
    assert done.stdout == "-a b|$(x)|it's||"


def test_an_engine_that_cannot_be_run_is_one_line() -> None:
    target = LocalTarget("here")
    with (
        scratch_dir(target, Path("campaign")) as scratch,
        pytest.raises(DeviceError, match=r"/nowhere: cannot be run on here: .*") as refused,
    ):
        memory_plan(target, Path("/nowhere"), Path("m.gguf"), make_arm(), scratch)
    assert "\n" not in str(refused.value)


def test_the_layer_check_does_not_hand_them_on(strict: Path) -> None:
    dump_layer(strict, Path("m.gguf"), 1, "prefix", [])


def test_asking_for_a_version_does_not_hand_them_on(strict: Path) -> None:
    assert version_line(strict) == '{"needed_bytes": 7}'
