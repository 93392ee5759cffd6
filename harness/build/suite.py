"""The engine's own C++ tests, and starting anew. Uses the same build directory as the engine."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from harness.build import compile as compiling
from harness.build.engine import prepare_workspace
from harness.build.recipe import ENGINE, LAUNCHER, Order, make_recipe
from harness.build.types import Progress, Reporter
from harness.cachedir import cache_root, guarded, locked


@dataclass(frozen=True)
class TestRun:
    """Outcome of ctest; `log` holds the output of what failed."""

    __test__ = False  # not a test class, whatever pytest thinks of the name

    passed: bool
    log: Path


def run_tests(
    order: Order, *, cache_dir: Path | None = None, progress: Progress | None = None
) -> TestRun:
    """Build everything and run ctest. DeviceError when it does not compile."""
    report = Reporter(progress)
    recipe = make_recipe(ENGINE, order)
    cache = cache_root(cache_dir)
    with locked(cache / "locks" / "build.lock", lambda line: report("wait", line)) as lock:
        with guarded("building the engine's tests", cache):
            work = prepare_workspace(cache, recipe, report, lock, tests=True)
            compiling.build(work, recipe.tools, ("all",), report)
        report("check", "running the engine's tests")
        log = work.home / "ctest.log"
        log.unlink(missing_ok=True)
        ctest = recipe.tools.cmake.with_name("ctest")
        # two at once also where there are more cores: some of them compute with two threads
        at_once = str(min(2, os.cpu_count() or 1))
        command = [str(ctest), "--test-dir", str(work.out), "--output-on-failure"]
        command += ["--parallel", at_once]
        code = compiling.run(
            [*command, "--no-tests=error"], log, lambda text: report("check", text.strip()[:70])
        )
    return TestRun(code == 0, log)


def clean(cache_dir: Path | None, order: Order) -> None:
    """Delete the build directories and the published executables of the current recipes."""
    cache = cache_root(cache_dir)
    for program in (ENGINE, LAUNCHER):
        recipe = make_recipe(program, order)
        with locked(cache / "locks" / "build.lock"):
            for made in (
                cache / "build" / f"{program}-{recipe.workspace_key[:24]}",
                cache / "bin" / f"{program}-{recipe.key[:24]}",
            ):
                shutil.rmtree(made, ignore_errors=True)
