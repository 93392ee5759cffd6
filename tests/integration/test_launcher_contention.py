"""What keeps a program from the cores, as the launcher tells it: a neighbour, a quota, a queue."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher_parts import PYTHON, Run
from quota_parts import CpuQuota, QuotaUnavailableError, cpu_quota

pytestmark = pytest.mark.slow  # the first test builds the launcher

BUSY = "import time; end = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass"
# Two threads of C code that hold no interpreter lock, both wanting the one core they may use.
CROWDED = """
import hashlib, os, threading, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
end = time.monotonic() + 1.5
def work():
    while time.monotonic() < end:
        hashlib.sha256(bytes(1 << 20)).digest()
thread = threading.Thread(target=work)
thread.start()
work()
thread.join()
"""


@pytest.fixture
def quota() -> Iterator[CpuQuota]:
    try:
        with cpu_quota() as made:
            yield made
    except QuotaUnavailableError as e:
        pytest.skip(str(e))


def test_a_neighbour_is_seen_and_the_program_itself_is_not(cell: Run) -> None:
    alone = cell(PYTHON, "-c", BUSY)
    with subprocess.Popen([PYTHON, "-c", BUSY.replace("1.5", "60")]) as neighbour:
        try:
            beside = cell(PYTHON, "-c", BUSY)
        finally:
            neighbour.kill()
    # Whatever else the machine did: beside its own time there is what the neighbour had.
    assert beside["neighbour_cpu_s"] > 0.2
    for result in (alone, beside):
        assert 0 <= result["neighbour_cpu_s"] <= (os.cpu_count() or 1) * result["wall_s"]
        assert result["steal_cpu_s"] is None or result["steal_cpu_s"] >= 0


def test_threads_that_share_a_core_wait_for_it(cell: Run) -> None:
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel counts no waits")
    result = cell(PYTHON, "-c", CROWDED)
    assert result["cpu_wait_s"] > 0.5  # one of both always waits; what ends between looks is missed
    assert result["cpu_wait_s"] < 2.1 * result["wall_s"]


def test_a_quota_that_a_wrapper_enters_is_found(cell: Run, quota: CpuQuota, tmp_path: Path) -> None:
    wrapper = quota.wrapper(tmp_path / "wrapper", Path(PYTHON))
    assert cell(wrapper, "-c", BUSY)["cpu_throttled_s"] == 0
    quota.hold(0.05)  # less than neighbours leave it
    held = cell(wrapper, "-c", BUSY)
    assert held["status"] == "ok"
    assert held["cpu_throttled_s"] > 0.1
    assert held["user_s"] + held["system_s"] < 0.5 * held["wall_s"]
    quota.lift()
    after = cell(wrapper, "-c", BUSY)
    assert after["cpu_throttled_s"] == 0  # of an earlier cell nothing counts


def test_a_cgroup_that_is_not_shown_leaves_the_quota_unknown(cell: Run, device: Path) -> None:
    result = cell("true", proc_root=device / "proc", sys_root=device / "sys")
    assert result["cpu_throttled_s"] is None
    assert result["neighbour_cpu_s"] == 0  # the made-up clock stands still
    assert result["steal_cpu_s"] == 0


def test_what_is_not_counted_here_is_null(cell: Run, tmp_path: Path) -> None:
    result = cell("true", proc_root=tmp_path / "none", sys_root=tmp_path / "none")
    assert result["cpu_throttled_s"] is result["neighbour_cpu_s"] is result["steal_cpu_s"] is None
