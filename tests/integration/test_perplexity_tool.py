"""`--ppl-file` against llama.cpp's perplexity tool, built from the source that the engine uses."""

from __future__ import annotations

import fcntl
import re
import subprocess
from pathlib import Path

import pytest
from engine_parts import engine

from harness.build import compile as compiling
from harness.build.engine import prepare_workspace
from harness.build.recipe import ENGINE, make_recipe
from harness.build.source import pinned_source
from harness.build.types import Reporter
from harness.cachedir import cache_root, locked
from harness.models.resolve import DATA, REFERENCE
from harness.models.text import HELDOUT_FILE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

SOURCE = Path(__file__).parent / "llama_perplexity"
RESULT = re.compile(rb"(?:Final estimate: PPL =|perplexity) (\d+\.\d{4}) \+(?:/-|-) (\d+\.\d{5})")
TEXT_BYTES = 20_000


@pytest.fixture(scope="module")
def tool(request: pytest.FixtureRequest) -> Path:
    """The tool, compiled once (30 s) against the libraries of the engine's own build."""
    cache, report = cache_root(None), Reporter(None)
    recipe = make_recipe(ENGINE)
    with locked(cache / "locks" / "build.lock", lambda _: None) as lock:
        work = prepare_workspace(cache, recipe, report, lock)
        compiling.build(work, recipe.tools, ("llama",), report)
    build = request.config.cache.mkdir("llama-perplexity-build")
    with (build / ".lock").open("w") as mutex:
        fcntl.flock(mutex, fcntl.LOCK_EX)
        for command in (
            [
                *(recipe.tools.cmake, "-G", "Ninja", "-S", SOURCE, "-B", build),
                f"-DCMAKE_MAKE_PROGRAM={recipe.tools.ninja}",
                f"-DCMAKE_CXX_COMPILER={recipe.tools.cxx}",
                f"-DLLAMA_DIR={pinned_source(cache, report).path}",
                f"-DLLAMA_BUILD={work.out / 'llama'}",
            ],
            [recipe.tools.cmake, "--build", build, "-j2"],
        ):
            done = subprocess.run(command, capture_output=True, check=False)
            assert done.returncode == 0, done.stdout[-3000:].decode(errors="replace")
    return build / "llama-perplexity"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scored") / "text.txt"
    path.write_bytes(HELDOUT_FILE.read_bytes()[:TEXT_BYTES])
    return path


def result(*command: object) -> tuple[bytes, bytes]:
    """Value and error, as many digits as both print."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, check=False, timeout=1800
    )
    assert done.returncode == 0, done.stderr[-2000:].decode(errors="replace")
    found = RESULT.search(done.stdout + done.stderr)
    assert found is not None, (done.stdout + done.stderr)[-2000:]
    return found[1], found[2]


@pytest.mark.parametrize(("n_ctx", "n_batch"), [(512, 512), (512, 128), (300, 64), (257, 100)])
def test_plain_and_streamed_agree_with_the_tool_in_every_digit(
    tool: Path, text: Path, n_ctx: int, n_batch: int
) -> None:
    expected = result(tool, DATA / REFERENCE, text, n_ctx, n_batch)
    score = (engine(), "-m", DATA / REFERENCE, "--ppl-file", text, "-t", 1)
    size = ("-c", n_ctx, "-b", n_batch)
    assert result(*score, *size) == expected
    assert result(*score, *size, "--moe-stream", "--cache-mb", 8, "--overlap") == expected
