"""The cgroup memory limit for real: what it counts, whom it kills, and that nothing of it is left.

On a machine whose cgroups the tests may not use, those that need one are skipped with the reason.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cell_parts import make_arm
from launcher_parts import MIB, PYTHON, Run, command, file_text, is_alive, result_of, wait_for

from harness.device.preflight import check_cgroup
from harness.errors import DeviceError, UsageError
from harness.targets.local import LocalTarget

HERE = LocalTarget("here")

pytestmark = pytest.mark.slow  # the first test builds the launcher

LIMIT = {"cgroup_limit_bytes": 64 * MIB, "cgroup_mode": "required"}

# Reads a file from end to end, then says how much of it is in the page cache.
READ = """
import ctypes, mmap, os, sys
with open(sys.argv[1], "rb", buffering=0) as file:
    size = os.fstat(file.fileno()).st_size
    while file.read(1 << 20):
        pass
    mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
first = ctypes.c_char.from_buffer(mapped)
pages = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mincore(ctypes.byref(first), ctypes.c_size_t(size), pages) == 0
print(sum(page & 1 for page in pages) * mmap.PAGESIZE)
"""

# Starts a process that leaves the group, and waits.
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""


@pytest.fixture
def cgroups(launcher: Path, tmp_path: Path) -> Path:
    """The directory in which the launcher makes its cgroups on this machine."""
    subprocess.run(command(launcher, tmp_path / "trial", LIMIT, ["true"]), check=True)
    result = result_of(tmp_path / "trial")
    if result["status"] == "cgroup_unavailable":
        pytest.skip(result["status_detail"])
    return Path(result["cgroup"]["path"]).parent


@pytest.fixture
def big_file(tmp_path: Path) -> Path:
    """A file of 200 MiB of which nothing is in the page cache."""
    path = tmp_path / "big"
    with path.open("wb") as file:
        for _ in range(200):
            file.write(os.urandom(MIB))
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


@pytest.mark.usefixtures("cgroups")
def test_memory_beyond_the_limit_is_a_kill_that_is_told_from_others(cell: Run) -> None:
    result = cell(PYTHON, "-c", "bytearray(200 << 20)", **LIMIT)
    assert (result["status"], result["signal"]) == ("killed", signal.SIGKILL)
    assert f"limit of {64 * MIB} bytes" in result["status_detail"]
    cgroup = result["cgroup"]
    assert (cgroup["limit_bytes"], cgroup["reason"]) == (64 * MIB, None)
    assert (cgroup["oom_kills"], cgroup["oom_killed"]) == (1, True)
    assert cgroup["failcnt"] != 0  # None where the kernel does not count it
    assert 60 * MIB < cgroup["peak_bytes"] <= 64 * MIB
    assert result["anon_peak_bytes"] <= 64 * MIB
    assert cgroup["removed"] is True
    assert not Path(cgroup["path"]).exists()
    other = cell("sh", "-c", "kill -KILL $$", **LIMIT)
    assert (other["status"], other["cgroup"]["oom_killed"]) == ("killed", False)


@pytest.mark.usefixtures("cgroups")
def test_the_page_cache_cannot_hide_a_file(cell: Run, output: Any, big_file: Path) -> None:
    result = cell(PYTHON, "-c", READ, big_file, **LIMIT)
    assert result["status"] == "ok"
    assert 0 < int(output()) < 64 * MIB
    assert 60 * MIB < result["cgroup"]["peak_bytes"] <= 64 * MIB
    assert result["cgroup"]["oom_kills"] == 0
    # The page cache goes with the cgroup: to the next cell it would be free of charge.
    again = cell(PYTHON, "-c", READ, big_file, **LIMIT)
    assert 60 * MIB < again["cgroup"]["peak_bytes"] <= 64 * MIB
    # Without the limit, as much of the file stays as the machine has room for.
    cell(PYTHON, "-c", READ, big_file)
    assert int(output()) > 2 * 64 * MIB


@pytest.mark.usefixtures("cgroups")
def test_a_file_that_was_cached_before_is_free_of_charge_which_is_shown(
    cell: Run, big_file: Path
) -> None:
    touch = (
        "import mmap, sys, time; file = open(sys.argv[1], 'rb');"
        "mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ);"
        "sum(mapped[i] for i in range(0, len(mapped), mmap.PAGESIZE));"
        "time.sleep(1.5)"  # to be seen by a sample: from the page cache it takes a few milliseconds
    )
    result = cell(PYTHON, "-c", touch, big_file, **LIMIT)
    assert result["status"] == "ok"
    assert result["cgroup"]["uncharged_bytes"] < 32 * MIB  # the interpreter and its libraries
    big_file.read_bytes()
    result = cell(PYTHON, "-c", touch, big_file, **LIMIT)
    assert result["status"] == "ok"
    assert result["rss_peak_bytes"] >= 200 * MIB
    assert result["cgroup"]["peak_bytes"] < 64 * MIB
    assert result["cgroup"]["uncharged_bytes"] > 136 * MIB


@pytest.mark.usefixtures("cgroups")
def test_a_program_may_outlive_the_kill_of_its_child(cell: Run) -> None:
    parent = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'bytearray(200 << 20)'])"
    )
    result = cell(PYTHON, "-c", parent, **LIMIT)
    assert result["status"] == "ok"
    assert (result["cgroup"]["oom_kills"], result["cgroup"]["oom_killed"]) == (1, False)


def test_the_program_is_inside_and_the_launcher_is_not(started: Any, cgroups: Path) -> None:
    process = started(PYTHON, "-c", "import time; time.sleep(600)", **LIMIT)
    own = cgroups / f"moe-launcher-{process.pid}"
    members = wait_for(lambda: file_text(own / "cgroup.procs").split())
    assert str(process.pid) not in members
    assert f"/moe-launcher-{process.pid}\n" in Path(f"/proc/{members[0]}/cgroup").read_text()
    assert "/moe-launcher-" not in Path(f"/proc/{process.pid}/cgroup").read_text()


def test_swap_cannot_hide_memory(started: Any, cgroups: Path, tmp_path: Path) -> None:
    process = started("sleep", "600", **LIMIT)
    own = cgroups / f"moe-launcher-{process.pid}"
    wait_for((tmp_path / "cell" / "samples.csv").exists)
    wait_for(lambda: file_text(own / "cgroup.procs"))
    together = own / "memory.memsw.limit_in_bytes"
    alone = own / "memory.swap.max"
    limited = together.exists() or alone.exists()
    if limited:
        limit, expected = (together, 64 * MIB) if together.exists() else (alone, 0)
        assert int(limit.read_text()) == expected
    process.terminate()
    process.wait(timeout=120)
    assert result_of(tmp_path / "cell")["cgroup"]["swap_limited"] is limited


@pytest.mark.usefixtures("cgroups")
def test_both_limits_hold_at_once(cell: Run) -> None:
    result = cell(PYTHON, "-c", "bytearray(300 << 20)", data_limit_bytes=200 * MIB, **LIMIT)
    assert (result["status"], result["exit_code"]) == ("failed", 1)  # refused, hence never used
    assert result["cgroup"]["oom_kills"] == 0
    result = cell(PYTHON, "-c", "bytearray(100 << 20)", data_limit_bytes=200 * MIB, **LIMIT)
    assert result["cgroup"]["oom_killed"] is True


def test_what_the_program_left_behind_is_no_obstacle(
    cell: Run, cgroups: Path, tmp_path: Path
) -> None:
    result = cell(PYTHON, "-c", DAEMON, tmp_path / "daemon", time_limit_s=5, **LIMIT)
    assert (result["status"], result["timed_out"]) == ("killed", True)
    assert result["cgroup"]["removed"] is True
    assert not (cgroups / Path(result["cgroup"]["path"]).name).exists()
    assert not is_alive(int((tmp_path / "daemon").read_text()))


def test_a_signal_to_the_launcher_leaves_no_cgroup(
    started: Any, cgroups: Path, tmp_path: Path
) -> None:
    process = started(PYTHON, "-c", DAEMON, tmp_path / "daemon", **LIMIT)
    wait_for((tmp_path / "daemon").exists)
    own = cgroups / f"moe-launcher-{process.pid}"
    assert own.exists()
    process.terminate()
    assert process.wait(timeout=120) == 0
    assert result_of(tmp_path / "cell")["cgroup"]["removed"] is True
    assert not own.exists()


def test_the_death_of_the_host_leaves_no_cgroup(
    launcher: Path, cgroups: Path, tmp_path: Path
) -> None:
    program = [PYTHON, "-c", DAEMON, tmp_path / "daemon"]
    argv = command(launcher, tmp_path / "cell", LIMIT, program)
    host = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    parent = subprocess.Popen([PYTHON, "-c", host, *argv])
    wait_for((tmp_path / "daemon").exists)
    parent.kill()
    parent.wait()
    wait_for((tmp_path / "cell" / "result.json").exists)
    path = Path(result_of(tmp_path / "cell")["cgroup"]["path"])
    assert path.parent == cgroups
    assert not path.exists()


def test_a_stop_before_the_start_leaves_no_cgroup_and_no_figures(
    started: Any, cgroups: Path, tmp_path: Path
) -> None:
    process = started("touch", tmp_path / "was started", **LIMIT, probe_s=300)
    own = cgroups / f"moe-launcher-{process.pid}"
    wait_for(own.exists)
    process.terminate()
    assert process.wait(timeout=120) == 0
    assert not own.exists()
    cgroup = result_of(tmp_path / "cell")["cgroup"]
    assert cgroup["limit_bytes"] == 64 * MIB
    assert cgroup["peak_bytes"] is cgroup["oom_kills"] is cgroup["oom_killed"] is None
    assert not (tmp_path / "was started").exists()


@pytest.fixture
def apart(cgroups: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A cgroup in which other tests' launchers do not clean up, and how to start one there.

    In version 2, where that would take the controller out of their hands, the usual one.
    """
    if not (cgroups / "memory.limit_in_bytes").exists():
        yield cgroups, {}
        return
    own = cgroups / f"apart-{os.getpid()}"
    own.mkdir()
    yield own, {"preexec_fn": lambda: (own / "cgroup.procs").write_text("0")}
    wait_for(lambda: not file_text(own / "cgroup.procs"))
    own.rmdir()


@pytest.fixture
def stale(
    launcher: Path, apart: tuple[Path, dict[str, Any]], tmp_path: Path
) -> Iterator[tuple[Path, int]]:
    """The cgroup of a launcher that was killed outright, and a process that is still in it."""
    place, join = apart
    program = [PYTHON, "-c", DAEMON, tmp_path / "daemon"]
    with subprocess.Popen(command(launcher, tmp_path / "cell", LIMIT, program), **join) as process:
        wait_for((tmp_path / "daemon").exists)
        process.kill()
    pid = int((tmp_path / "daemon").read_text())
    assert is_alive(pid)
    yield place / f"moe-launcher-{process.pid}", pid
    if is_alive(pid):
        os.kill(pid, signal.SIGKILL)


def test_the_next_start_removes_what_a_killed_launcher_left(
    cell: Run, apart: tuple[Path, dict[str, Any]], stale: tuple[Path, int]
) -> None:
    (left, pid), (place, join) = stale, apart
    assert left.exists()
    # The number of a process that lives: whether it is a launcher or not, this is left alone.
    living = place / f"moe-launcher-{os.getpid()}"
    living.mkdir()
    try:
        assert cell("true", popen=join)["cgroup"] is None
        assert left.exists()  # who asks for no limit does not touch cgroups
        assert cell("true", **LIMIT, popen=join)["status"] == "ok"
        assert not left.exists()
        assert not is_alive(pid)
        assert living.exists()
    finally:
        living.rmdir()


def made_up(root: Path, controllers: str) -> dict[str, Any]:
    """A device with cgroup version 2 only, whose files are plain ones."""
    group = root / "sys" / "fs" / "cgroup"
    (root / "proc" / "self").mkdir(parents=True)
    group.mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text("9 1 0:8 / /sys/fs/cgroup rw - cgroup2 none rw\n")
    (root / "proc/self/cgroup").write_text("0::/\n")
    (group / "cgroup.controllers").write_text(controllers)
    return {"proc_root": root / "proc", "sys_root": root / "sys"}


@pytest.mark.parametrize(
    ("controllers", "subtree", "words"),
    [
        ("cpu io\n", "", "has no memory controller"),
        ("cpu memory\n", "cpu\n", "memory is not in its cgroup.subtree_control"),
        ("memory\n", "memory\n", "cannot set memory.max: No such file or directory"),
    ],
)
def test_without_the_limit_what_required_it_is_not_started_and_what_wanted_it_is(
    cell: Run, tmp_path: Path, controllers: str, subtree: str, words: str
) -> None:
    device = made_up(tmp_path / "device", controllers)
    (device["sys_root"] / "fs/cgroup/cgroup.subtree_control").write_text(subtree)
    started = tmp_path / "was started"
    result = cell("touch", started, **LIMIT, **device)
    assert result["status"] == "cgroup_unavailable"
    assert words in result["status_detail"]
    assert result["exit_code"] is None
    assert not started.exists()
    for mode in ({}, {"cgroup_mode": "wanted"}):
        result = cell("touch", started, cgroup_limit_bytes=64 * MIB, **mode, **device)
        assert (result["status"], result["cgroup"]["mode"]) == ("ok", "wanted")
        assert words in result["cgroup"]["reason"]
        assert result["cgroup"]["limit_bytes"] is result["cgroup"]["peak_bytes"] is None
        assert started.exists()
        started.unlink()
    assert {path.name for path in (device["sys_root"] / "fs/cgroup").iterdir()} == {
        "cgroup.controllers",
        "cgroup.subtree_control",
    }


def test_selftest_says_whether_the_limit_can_be_had(
    launcher: Path, cgroups: Path, tmp_path: Path
) -> None:
    del cgroups
    argv = [launcher, "selftest", "--cgroup-limit-bytes", str(64 * MIB)]
    done = subprocess.run(argv, capture_output=True, check=True)
    answer = json.loads(done.stdout)
    assert (answer["cgroup_available"], answer["cgroup_reason"]) == (True, None)
    assert answer["data_limit_enforced"] is None
    device = made_up(tmp_path / "device", "cpu\n")
    argv += ["--proc-root", device["proc_root"], "--sys-root", device["sys_root"]]
    done = subprocess.run(argv, capture_output=True, check=False)
    assert done.returncode == 6
    assert json.loads(done.stdout)["cgroup_available"] is False


def test_an_arm_that_requires_what_cannot_be_had_is_refused_before_anything_is_measured(
    launcher: Path, cgroups: Path, tmp_path: Path
) -> None:
    del cgroups
    arm = replace(make_arm(), cgroup_limit_bytes=64 * MIB, cgroup_mode="required")
    check_cgroup(HERE, launcher, arm)
    device = made_up(tmp_path / "device", "cpu\n")
    elsewhere = tmp_path / "launcher"
    elsewhere.write_text(
        f'#!/bin/sh\nexec "{launcher}" "$@" --proc-root {device["proc_root"]}'
        f" --sys-root {device['sys_root']}\n"
    )
    elsewhere.chmod(0o755)
    with pytest.raises(UsageError, match=r"memory\.cgroup: required, but the cgroup hierarchy"):
        check_cgroup(HERE, elsewhere, arm)
    check_cgroup(HERE, elsewhere, replace(arm, cgroup_mode="wanted"))
    check_cgroup(HERE, elsewhere, replace(arm, cgroup_limit_bytes=None))
    with pytest.raises(DeviceError, match="is it a moe-launcher"):
        check_cgroup(HERE, Path("/bin/true"), arm)


def test_who_lacks_the_rights_is_told_so(launcher: Path, cgroups: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give its rights up")
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o777)
        copy = Path(directory) / "moe-launcher"
        copy.write_bytes(launcher.read_bytes())
        copy.chmod(0o755)
        argv = command(copy, Path(directory) / "cell", LIMIT, ["true"])
        subprocess.run(argv, check=True, user=65534, group=65534, extra_groups=[])
        result = result_of(Path(directory) / "cell")
    assert result["status"] == "cgroup_unavailable"
    assert f"{cgroups}: cannot make a cgroup: Permission denied" in result["status_detail"]


@pytest.mark.usefixtures("cgroups")
def test_a_limit_in_which_no_program_can_start_is_told_from_a_crash(cell: Run) -> None:
    result = cell("true", cgroup_limit_bytes=4096, cgroup_mode="required")
    # Whether the process that tries it is killed, or only the program, is a matter of a few pages.
    if result["status"] == "cgroup_unavailable":
        assert "is the limit too small?" in result["status_detail"]
    else:
        assert (result["status"], result["cgroup"]["oom_killed"]) == ("killed", True)
        assert result["cgroup"]["removed"] is True


def test_the_machine_s_own_limit_is_not_overruled(cell: Run, cgroups: Path) -> None:
    outer = cgroups / f"test-{os.getpid()}"
    outer.mkdir()
    limit = outer / "memory.limit_in_bytes"
    if not limit.exists():
        outer.rmdir()
        pytest.skip("cgroup version 2: the controller would have to be enabled in the test's own")
    try:
        limit.write_text(str(32 * MIB))
        join = {"preexec_fn": lambda: (outer / "cgroup.procs").write_text("0")}
        result = cell("true", **LIMIT, popen=join)
        # Inside it the limit would be another, so the next place outwards is taken.
        assert Path(result["cgroup"]["path"]).parent == cgroups
        result = cell("true", **(LIMIT | {"cgroup_limit_bytes": 16 * MIB}), popen=join)
        assert Path(result["cgroup"]["path"]).parent == outer
    finally:
        wait_for(lambda: not file_text(outer / "cgroup.procs"))
        outer.rmdir()
