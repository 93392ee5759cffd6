"""What this product is for: a line of the real engine is changed, and the change is judged.

Only the file of that line is compiled anew; the rest is what the engine was linked from.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from campaign_parts import DISTURBED_PAIRS_COUNT

from harness.build import ensure_engine
from harness.build.recipe import ENGINE, make_recipe
from harness.build.source import tree_sha256
from harness.cachedir import cache_root

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

REPO = Path(__file__).resolve().parents[2]
# one read of an expert becomes one for each of its 4 KiB blocks: the same bytes, more calls
ASKED = "pread(fd, dest + got, asked - got, "
BLOCKWISE = "pread(fd, dest + got, std::min<uint64_t>(asked - got, kIoBlock), "
EDITED, LIBRARY = "src/shard_files.cpp", "libmoe_core.a"


def commands(out: Path) -> list[list[str]]:
    """How everything in the build directory is made, in order."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ninja = shutil.which("ninja", path=path)
    if ninja is None:
        pytest.skip("no ninja")
    argv = [ninja, "-C", out, "-t", "commands", f"bin/{ENGINE}"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return [[w for w in shlex.split(line) if w not in (":", "&&")] for line in said.splitlines()]


@pytest.fixture
def edited(tmp_path: Path) -> Path:
    """An engine that reads block by block."""
    ensure_engine()
    recipe = make_recipe(ENGINE)
    work = cache_root() / "build" / f"{ENGINE}-{recipe.workspace_key[:24]}"
    if not (work / "out" / LIBRARY).is_file() or (
        tree_sha256(work / "src", recipe.parts) != recipe.sources_sha256
    ):
        pytest.skip("the engine was not linked here, or not last")
    source, made, engine = tmp_path / "edited.cpp", tmp_path / "edited.o", tmp_path / ENGINE
    text = (work / "src" / EDITED).read_text()
    assert text.count(ASKED) == 1
    source.write_text(text.replace(ASKED, BLOCKWISE))
    known = commands(work / "out")
    (compiling,) = (c for c in known if c[-1].endswith(EDITED))
    linking = next(c for c in known if f"bin/{ENGINE}" in c and LIBRARY in c)
    own = compiling[: compiling.index("-MD")]  # what follows names the places of before
    linking[linking.index("-o") + 1] = str(engine)
    linking.insert(linking.index(LIBRARY), str(made))  # so that the library's is not taken
    here = ["-I", str(work / "src" / "src")]
    for argv in ([*own, *here, "-o", str(made), "-c", str(source)], linking):
        done = subprocess.run(argv, cwd=work / "out", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return engine


def test_a_change_that_makes_the_engine_slower_is_found_a_loss(
    edited: Path, tmp_path: Path
) -> None:
    """The baseline is the campaign's own engine, from the sources as they are."""
    argv = [
        *(sys.executable, "-m", "harness", "+experiment=sequential_pairs", "tracking=off"),
        *("cells.candidate={}", f"cells.candidate.binary={edited}", f"runs_dir={tmp_path}/runs"),
        *("cell.n_predict=128", "schedule.spacing_s=0", "schedule.probe_s=0", "design.pairs=18"),
        *DISTURBED_PAIRS_COUNT,
    ]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    (path,) = tmp_path.glob("runs/*/verdict.json")
    (v,) = json.loads(path.read_text())["verdicts"]
    assert v["outcome"] == "loss", done.stdout
    assert v["effect_pct"] < -5
    # and nothing else changed, but for what a file that was built is known by
    assert v["output"] == "identical"
    records = [json.loads(p.read_text()) for p in path.parent.glob("cells/*/record.json")]
    assert len({r["counters"]["read_bytes"] for r in records}) == 1
    assert len({r["identity"]["engine_sha256"] for r in records}) == 2
