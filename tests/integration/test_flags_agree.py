"""The harness offers what the engine accepts, and refuses what the engine refuses: pair by pair."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cell_parts import make_arm, with_engine
from engine_parts import engine
from flag_parts import CHOICES, PAIRS, settings_of

from harness.engine_flags import conflict
from harness.engines import native_argv

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

EXIT_USAGE, EXIT_NO_MODEL = 2, 3


@pytest.fixture(scope="module")
def program() -> Path:
    return engine()


def answer(program: Path, folder: Path, pair: tuple[str, ...]) -> tuple[int, str]:
    """The engine looks at its flags first, so an absent model is how it says that they can act."""
    arm = with_engine(make_arm(), **settings_of(*pair))
    prompt = folder / "prompt.txt"
    prompt.write_text("In the beginning")
    argv = native_argv.engine_argv(program, folder / "absent.gguf", prompt, arm, folder)
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600)
    return done.returncode, done.stderr


@pytest.mark.parametrize("first", CHOICES)
def test_a_pair_is_refused_by_both_or_by_neither(
    first: str, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_argv, "conflict", lambda _settings: None)
    for pair in [(first,), *(p for p in PAIRS if p[0] == first)]:
        ours = conflict(settings_of(*pair))
        code, stderr = answer(program, tmp_path, pair)
        assert code == (EXIT_NO_MODEL if ours is None else EXIT_USAGE), (pair, ours, stderr)
        if ours is not None:
            assert len(stderr.strip().splitlines()) == 1
