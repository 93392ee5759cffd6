"""Engines that the harness starts see no EPQ_* variable of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest
from cell_parts import make_arm

from harness.build.engine import version_line
from harness.device.preflight import memory_plan
from harness.engine_env import engine_environment
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
    assert memory_plan(strict, Path("m.gguf"), make_arm()) == {"needed_bytes": 7}


def test_the_layer_check_does_not_hand_them_on(strict: Path) -> None:
    dump_layer(strict, Path("m.gguf"), 1, "prefix", [])


def test_asking_for_a_version_does_not_hand_them_on(strict: Path) -> None:
    assert version_line(strict) == '{"needed_bytes": 7}'
