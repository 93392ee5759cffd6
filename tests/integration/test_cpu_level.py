"""An x86-64 engine for AVX2 on a processor without: one line, not an illegal instruction."""

from __future__ import annotations

import platform
import shutil
import subprocess

import pytest
from engine_parts import engine

from harness.build.machine import level_of, this_machine

QEMU = shutil.which("qemu-x86_64")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


@pytest.mark.skipif(
    platform.machine() != "x86_64" or level_of(this_machine()) != "avx2",
    reason="this machine's engine is not one for AVX2",
)
@pytest.mark.skipif(QEMU is None, reason="no qemu-x86_64 (Debian: qemu-user)")
def test_an_older_processor_is_refused_in_one_line() -> None:
    done = subprocess.run(
        [QEMU, "-cpu", "Nehalem", engine(), "-m", "x", "-p", "x"], capture_output=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.decode() == (
        "moe-engine: error: this build is for avx2 processors, but this one lacks AVX2, FMA, F16C, "
        "BMI2; build with a lower MOE_CPU_LEVEL\n"
    )
