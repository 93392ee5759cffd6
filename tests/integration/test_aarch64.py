"""Engine and launcher for aarch64, cross-compiled by zig and run under qemu.

Not shown here: speed, and anything of a phone. qemu computes as the processor does, so what streams
must give the same tokens and logits as plain inference, bit by bit.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from engine_parts import outputs, run

from harness.build import EngineBuild, ensure_engine
from harness.build import compile as compiling
from harness.build.engine import prepare_workspace
from harness.build.machine import elf_architecture, machine_at
from harness.build.recipe import LAUNCHER, Order, make_recipe
from harness.build.types import Reporter
from harness.cachedir import cache_root, locked
from harness.models.resolve import DATA, REFERENCE

QEMU = shutil.which("qemu-aarch64")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(QEMU is None, reason="no qemu-aarch64 (Debian: qemu-user)"),
]
MODEL = DATA / REFERENCE
# what most phones of the last years have
LEVEL = "armv8.2-a+dotprod+fp16"
# qemu does not enforce RLIMIT_DATA, and makes up /proc/self/stat with zeros
NOT_OF_QEMU = {"the_limit_is_enforced_on_this_kernel", "sampler_sees_own_memory_grow"}
ORDER = Order(toolchain="zig", machine=machine_at("aarch64", LEVEL, False))


def emulated(program: Path, script: Path, cpu: str = "max") -> Path:
    """A script that runs `program` on that processor."""
    script.write_text(f'#!/bin/sh\nexec "{QEMU}" -cpu {cpu} "{program}" "$@"\n')
    script.chmod(0o755)
    return script


@pytest.fixture(scope="module")
def build() -> EngineBuild:
    """From the user's cache, or compiled now (minutes)."""
    pytest.importorskip("ziglang")
    return ensure_engine(toolchain="zig", machine=ORDER.machine)


def test_both_are_static_programs_for_aarch64(build: EngineBuild) -> None:
    for program in (build.engine, build.launcher):
        assert elf_architecture(program) == "aarch64"
        # no program header of a loader: nothing but the kernel is needed
        assert b"/ld-musl" not in program.read_bytes()
    assert build.version is not None  # seen under qemu
    assert build.version.endswith(f"build {build.build_id} llama.cpp 0.5.0-dev level {LEVEL}")


def test_streaming_equals_plain_inference_token_by_token(
    build: EngineBuild, tmp_path: Path
) -> None:
    program = emulated(build.engine, tmp_path / "engine")

    def generated(*flags: str) -> dict[str, dict[str, Any]]:
        return run(program, MODEL, tmp_path, *flags, tokens=12)

    plain = generated()
    cache = ("--moe-stream", "--cache-mb", "8", "--force-cache")
    for flags in (("--dense-weights", "mmap"), ("--dense-weights", "anon", "--overlap")):
        streamed = generated(*cache, *flags)
        assert outputs(streamed) == outputs(plain)
        assert streamed["summary"]["total"]["evictions"] > 0


def test_a_processor_without_the_levels_instructions_is_refused_in_one_line(
    build: EngineBuild, tmp_path: Path
) -> None:
    old = emulated(build.engine, tmp_path / "engine", "cortex-a53")
    done = subprocess.run(
        [old, "-m", MODEL, "-p", "x", "-n", "1"], capture_output=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == b""
    assert done.stderr.decode() == (
        f"moe-engine: error: this build is for {LEVEL} processors, but this one lacks "
        "atomics, asimdrdm, fphp, asimdhp, asimddp; build with a lower MOE_CPU_LEVEL\n"
    )
    # which build it is can be asked anywhere
    done = subprocess.run([old, "--version"], capture_output=True, check=True)
    assert done.stdout.decode().strip() == build.version


def test_the_launcher_runs_a_cell(build: EngineBuild, tmp_path: Path) -> None:
    # any processor of the architecture will do
    launcher = emulated(build.launcher, tmp_path / "launcher", "cortex-a53")
    cell = tmp_path / "cell"
    done = subprocess.run(
        [launcher, "run", "--dir", cell, "--probe-s", "0", "--", "/bin/echo", "hello"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (cell / "stdout.txt").read_text() == "hello\n"
    assert json.loads((cell / "result.json").read_text())["exit_code"] == 0


def test_the_launchers_own_tests_pass_but_for_what_is_qemus(
    build: EngineBuild, tmp_path: Path
) -> None:
    cache, report = cache_root(None), Reporter(None)
    recipe = make_recipe(LAUNCHER, ORDER)
    with locked(cache / "locks" / "build.lock") as lock:
        work = prepare_workspace(cache, recipe, report, lock, tests=True)
        compiling.build(work, recipe.tools, ("launcher-tests",), report)
        tests = shutil.copy2(work.bin / "launcher-tests", tmp_path)
    done = subprocess.run([QEMU, "-cpu", "max", tests], capture_output=True, check=False)
    said = done.stdout.decode()
    assert re.search(r"^[5-9]\d tests, |^\d{3} tests, ", said, re.M), said + done.stderr.decode()
    failed = set(re.findall(r"^FAILED (\w+)", said, re.M))
    assert failed <= NOT_OF_QEMU, said
