"""The wall clock steps by hours while a campaign runs, here and on the device: nothing notices.

No namespace has a wall clock of its own, so a preloaded library tells another time than it is. The
launcher is linked dynamically for that.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_campaigns import ENDING_S, Bench, wait_for
from ssh_parts import Sshd
from together import Body, Outcomes, Together

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

SOURCE = Path(__file__).resolve().parents[2] / "engine_src" / "launcher"
HOUR_S = 3600
STEPPED = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long step_s(void) {
    char text[32] = {0};
    int fd = open(STEP_FILE, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (read(fd, text, sizeof text - 1) < 0) text[0] = 0;
        close(fd);
    }
    return strtol(text, 0, 10);
}
int clock_gettime(clockid_t clock, struct timespec * now) {
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += step_s();
    return (int) failed;
}
int gettimeofday(struct timeval * now, void * zone) {
    struct timespec t;
    (void) zone;
    clock_gettime(CLOCK_REALTIME, &t);
    now->tv_sec = t.tv_sec;
    now->tv_usec = t.tv_nsec / 1000;
    return 0;
}
time_t time(time_t * out) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}
"""


together = Together()


@pytest.fixture(scope="module")
def dynamic_launcher(request: pytest.FixtureRequest) -> Path:
    """The launcher, built once, against this machine's libc."""
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if cmake is None or shutil.which("c++") is None:
        pytest.skip("no cmake or no C++ compiler")
    build = request.config.cache.mkdir("moe-launcher-dynamic-build")
    # unoptimised: nothing is measured with it, and it compiles in half the time
    configure = [cmake, "-S", SOURCE, "-B", build, "-DMOE_CAN_LINK_STATIC=OFF"]
    configure += ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0"]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([cmake, "--build", build, "-j2"], check=True, stdout=subprocess.DEVNULL)
    return build / "moe-launcher"


def make_step(root: Path) -> Path:
    """The file with the seconds by which the clock is wrong; `step.so` beside it obeys."""
    file = root / "step"
    file.write_text("0")
    (root / "step.c").write_text(STEPPED)
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    subprocess.run(
        [
            *(compiler, "-shared", "-fPIC", "-O1", f'-DSTEP_FILE="{file}"'),
            *("-o", root / "step.so", root / "step.c"),
        ],
        check=True,
    )
    return file


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, dynamic_launcher: Path) -> Iterator[Outcomes]:
    """Each has a device, and a host, whose clock goes by a step of its own."""

    def run(body: Body, root: Path, stack: contextlib.ExitStack) -> None:
        step = make_step(root)
        preload = f"LD_PRELOAD={step.with_suffix('.so')}"
        sshd = Sshd(root / "sshd", settings=f"SetEnv {Sshd.environment} {preload}")
        stack.callback(sshd.stop)
        sshd.start()
        bench = Bench(root / "bench", sshd, dynamic_launcher, ("env", preload))
        stack.callback(bench.close)
        body(bench, step)

    with together.running(request, run) as outcomes:
        yield outcomes


@together.each(6 * HOUR_S, -6 * HOUR_S)
def test_a_step_changes_nothing(stepped: Bench, step: Path, seconds: int) -> None:
    arms = {"baseline": {}, "half": {"token_ms": 1000}, "off": {}}
    campaign = stepped.start(stepped.model(), arms=arms, n_predict=8, lease_s=60.0)
    stepped.until("cell_started", 1)
    wait_for(lambda: list(stepped.device.rglob("cells/01-half/telemetry.jsonl")))
    step.write_text(str(seconds))
    campaign.ends(0)
    records = stepped.check_whole(n_predict=8)
    assert stepped.starts() == {0: 1, 1: 1, 2: 1, 3: 1}
    half = records[1]
    assert half.started_unix_s is not None
    assert half.ended_unix_s is not None
    # it did step, on the device, too
    assert abs(half.ended_unix_s - half.started_unix_s - seconds) < 600
    cell = stepped.campaign() / "cells" / "01-half"
    assert 7 < json.loads((cell / "result.json").read_text())["wall_s"] < 600
    stepped.check_left_clean()


@together
def test_the_lease_ends_when_it_should(stepped: Bench, step: Path) -> None:
    arms = {"baseline": {}, "half": {"token_ms": 1000}, "off": {}}
    campaign = stepped.start(stepped.model(), arms=arms, n_predict=200, lease_s=12.0)
    stepped.until("cell_started", 1)
    wait_for(lambda: any("fake_engine" in line for line in stepped.processes()))
    campaign.kill()
    step.write_text(str(-6 * HOUR_S))
    began = time.monotonic()
    stepped.until_clean(12.0 + ENDING_S)
    assert time.monotonic() - began > 2.0
    wait_for(stepped.is_free)
