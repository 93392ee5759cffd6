"""Compiling on the target, which is this machine here: real shell, cmake and compiler."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import shutil
import threading
import time
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from loop_link import LoopLink
from ssh_parts import Sshd

from harness.build import ensure_engine, recipe, remote
from harness.build.host import BuildHost, find_there
from harness.build.machine import LEVELS, TargetMachine
from harness.build.types import BuildProgress
from harness.device.opening import compile_host
from harness.errors import DeviceError, UsageError
from harness.targets.remote import RemoteTarget
from harness.targets.ssh import SshLink

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

# of another architecture than this machine, or it would be compiled here
THERE = TargetMachine("aarch64", LEVELS["aarch64"]["armv8-a"])

ENGINE_PROJECT = """
cmake_minimum_required(VERSION 3.16)
project(small LANGUAGES C CXX)
file(READ ${MOE_LLAMA_DIR}/src/version.txt version)
add_library(llama STATIC ${MOE_LLAMA_DIR}/src/llama.cpp)
add_executable(moe-engine src/main.cpp)
target_link_libraries(moe-engine PRIVATE llama)
target_compile_definitions(moe-engine PRIVATE
    MOE_BUILD_ID="${MOE_BUILD_ID}" MOE_CPU_LEVEL="${MOE_CPU_LEVEL}")
"""
ENGINE_MAIN = """
#include <cstdio>
int llama();
int main() {
    std::printf("moe-engine 1 build %s llama.cpp %d %s\\n", MOE_BUILD_ID, llama(), MOE_CPU_LEVEL);
}
"""
LAUNCHER_PROJECT = """
cmake_minimum_required(VERSION 3.16)
project(small LANGUAGES CXX)
add_executable(moe-launcher src/main.cpp)
"""
LAUNCHER_MAIN = '#include <cstdio>\nint main() { std::printf("moe-launcher 1\\n"); }\n'


def slow_until(file: Path) -> str:
    """Of a project whose configuration does not end before the file is there."""
    wait = f"until [ -e '{file}' ]; do sleep 0.05; done"
    return f'{ENGINE_PROJECT}execute_process(COMMAND sh -c "{wait}")\n'


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture(autouse=True)
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An engine_src that compiles in seconds."""
    folder = write(
        tmp_path / "it's engine_src",
        {
            "CMakeLists.txt": ENGINE_PROJECT,
            "src/main.cpp": ENGINE_MAIN,
            "launcher/CMakeLists.txt": LAUNCHER_PROJECT,
            "launcher/src/main.cpp": LAUNCHER_MAIN,
        },
    )
    monkeypatch.setattr(recipe, "engine_source_dir", lambda: folder)
    monkeypatch.setattr(remote, "POLL_S", 0.1)
    return folder


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write(
        tmp_path / "llama",
        {
            "include/llama.h": "",
            "src/llama.cpp": "int llama() { return 7; }\n",
            "src/version.txt": "7",
            "docs/unused": "not sent",
        },
    )


@pytest.fixture
def link() -> LoopLink:
    return LoopLink()


@pytest.fixture
def host(link: LoopLink, tmp_path: Path) -> BuildHost:
    home = tmp_path / "the board's"
    home.mkdir()

    def put(source: Path, destination: str) -> None:
        link.put(source, destination)

    def call(argv: Any, *, timeout_s: float = 60.0) -> Any:
        return link.call(argv, timeout_s=timeout_s)

    lock = str(tmp_path / "device.lock")
    return BuildHost("board", PurePosixPath(home), call, put, link.get, lock, wait_s=0)


def built(
    host: BuildHost, cache: Path, llama: Path, steps: list[BuildProgress] | None = None
) -> Any:
    return ensure_engine(
        toolchain="host",
        machine=THERE,
        host=host,
        llama_cpp_dir=llama,
        cache_dir=cache,
        progress=steps.append if steps is not None else None,
    )


def test_it_is_compiled_there_once_and_what_comes_back_is_kept(
    host: BuildHost, llama: Path, tmp_path: Path, link: LoopLink
) -> None:
    steps: list[BuildProgress] = []
    build = built(host, tmp_path / "cache", llama, steps)
    assert build.source == "built"
    assert build.version == f"moe-engine 1 build {build.build_id} llama.cpp 7 armv8-a"
    assert os.access(build.engine, os.X_OK) and os.access(build.launcher, os.X_OK)
    assert build.engine.is_relative_to(tmp_path / "cache")
    # compiling itself can be over before it is looked at
    assert {s.stage for s in steps} >= {"source", "check"}
    assert not list(Path(host.home).rglob("unused"))
    puts = len(link.puts)
    again = built(host, tmp_path / "cache", llama)
    assert (again.source, again.version) == ("cached", build.version)
    assert len(link.puts) == puts
    # of attempts nothing stays
    assert not list(Path(host.home).rglob("pid-*")) + list(Path(host.home).rglob("code-*"))
    assert not list(Path(host.home).rglob("*.tar.gz"))


def test_what_is_not_as_it_came_is_compiled_again(
    host: BuildHost, llama: Path, tmp_path: Path, link: LoopLink
) -> None:
    build = built(host, tmp_path / "cache", llama)
    with build.engine.open("ab") as f:
        f.write(b"x")
    sent = len([p for p in link.puts if p.endswith(".tar.gz")])
    assert built(host, tmp_path / "cache", llama).source == "built"
    # llama.cpp's tree is there and whole: only ours was sent again
    assert len([p for p in link.puts if p.endswith(".tar.gz")]) == sent + 1
    # an altered tree there is noticed
    (tree,) = Path(host.home, "build").glob("llama-*")
    (tree / "src" / "llama.cpp").write_text("int llama() { return 8; }\n")
    build.engine.unlink()
    assert " llama.cpp 7 " in built(host, tmp_path / "cache", llama).version


def test_a_compile_error_names_our_file_and_the_log(
    host: BuildHost, llama: Path, sources: Path, tmp_path: Path
) -> None:
    (sources / "src" / "main.cpp").write_text("int main() { return nothing; }\n")
    with pytest.raises(DeviceError) as caught:
        built(host, tmp_path / "cache", llama)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("compiling moe-engine on board failed; log: ")
    assert Path(lines[0].rpartition("log: ")[2]).is_file()
    assert any(f"{sources}/src/main.cpp:1:" in x and "nothing" in x for x in lines)
    (sources / "src" / "main.cpp").write_text(ENGINE_MAIN)
    assert built(host, tmp_path / "cache", llama).source == "built"


def test_what_is_missing_there_is_named_at_once(
    host: BuildHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: LoopLink
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in (
        "sh",
        "head",
        "uname",
        "tar",
        "sha256sum",
        "setsid",
        "flock",
        "nice",
        "nproc",
        "gcc",
    ):
        (folder / name).symlink_to(shutil.which(name) or name)
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(UsageError) as caught:
        find_there(host)
    said = str(caught.value)
    assert said.startswith(
        "build.toolchain: host compiles on board, which lacks g++, cmake, make; install that there"
    )
    assert "\n" not in said
    assert link.puts == []


def test_make_does_where_ninja_is_absent(
    host: BuildHost, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for directory in os.environ["PATH"].split(":"):
        for program in Path(directory).iterdir() if Path(directory).is_dir() else ():
            if "ninja" not in program.name and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    monkeypatch.setenv("PATH", str(folder))
    assert find_there(host).ninja.name == "make"
    assert built(host, tmp_path / "cache", llama).source == "built"


def test_a_build_that_is_killed_there_is_told_and_can_be_run_again(
    host: BuildHost, llama: Path, sources: Path, tmp_path: Path
) -> None:
    project = ENGINE_PROJECT + "execute_process(COMMAND sleep 300)\n"
    (sources / "CMakeLists.txt").write_text(project)
    home = Path(host.home)

    def kill() -> None:
        for _ in range(6000):
            for file in home.rglob("pid-*[!w]"):  # not what is still .new
                os.killpg(int(file.read_text()), 9)
                return
            time.sleep(0.1)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(DeviceError, match="ended without an exit code: it was killed"):
        built(host, tmp_path / "cache", llama)
    killer.join()
    (sources / "CMakeLists.txt").write_text(ENGINE_PROJECT)
    assert built(host, tmp_path / "cache", llama).source == "built"


def test_nothing_is_compiled_while_a_campaign_measures_there(
    host: BuildHost, llama: Path, tmp_path: Path
) -> None:
    with Path(host.device_lock).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DeviceError, match="board: a campaign measures there, so nothing is co"):
            built(host, tmp_path / "cache", llama)
        assert not list(Path(host.home).rglob("out"))
        waiting = dataclasses.replace(host, wait_s=600)
        threading.Timer(2, lambda: fcntl.flock(lock, fcntl.LOCK_UN)).start()
        assert built(waiting, tmp_path / "cache", llama).source == "built"


def test_a_device_lock_that_cannot_be_is_named(
    host: BuildHost, llama: Path, tmp_path: Path
) -> None:
    nowhere = dataclasses.replace(host, device_lock=str(tmp_path / "none" / "lock"))
    with pytest.raises(DeviceError, match=r"board: .*/none/lock cannot be opened there; another"):
        built(nowhere, tmp_path / "cache", llama)


def test_the_device_is_taken_while_it_compiles(
    host: BuildHost, llama: Path, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    (sources / "CMakeLists.txt").write_text(slow_until(go))
    seen: list[bool] = []

    def look(log: str, name: str, report: Any) -> None:
        if not log:  # it has not begun
            return
        with Path(host.device_lock).open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                seen.append(True)
        go.touch()

    monkeypatch.setattr(remote, "_tell", look)
    built(host, tmp_path / "cache", llama)
    assert seen
    with Path(host.device_lock).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # and let go


def test_whoever_sees_the_end_of_a_build_finds_the_device_free(
    host: BuildHost, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while what told it has not ended yet; and a number that comes late is waited for."""
    folder = tmp_path / "slow bin"
    late = 'case "$2" in pid-*) sleep 1;; esac'
    long = 'case "$2" in code-*) sleep 3;; esac'
    write(folder, {"mv": f'#!/bin/sh\n{late}\n{shutil.which("mv")} "$@"\n{long}\n'})
    (folder / "mv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    assert built(host, tmp_path / "cache", llama).source == "built"
    with Path(host.device_lock).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_stopping_here_stops_it_there(
    host: BuildHost,
    llama: Path,
    sources: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (sources / "CMakeLists.txt").write_text(
        ENGINE_PROJECT + "execute_process(COMMAND sleep 987654)\n"
    )
    looks: list[str] = []

    def interrupt(log: str, name: str, report: Any) -> None:
        looks.append(log)
        if "Detecting CXX compile features - done" in log:
            raise KeyboardInterrupt

    monkeypatch.setattr(remote, "_tell", interrupt)
    with pytest.raises(KeyboardInterrupt):
        built(host, tmp_path / "cache", llama)
    assert looks
    for _ in range(600):
        if not sleeping():
            return
        time.sleep(0.1)
    pytest.fail("the compilation goes on")


def sleeping() -> bool:
    for process in Path("/proc").iterdir():
        try:
            if b"987654" in (process / "cmdline").read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


def test_another_machine_over_adb_or_without_a_host_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"host compiles for .*, the target is aarch64"):
        ensure_engine(toolchain="host", machine=THERE, cache_dir=tmp_path)


def test_over_ssh_and_over_a_break_in_it(
    llama: Path, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    (sources / "CMakeLists.txt").write_text(slow_until(go))
    machine = Sshd(tmp_path / "sshd")
    machine.start()
    target = RemoteTarget(
        SshLink(machine.config()),
        "ssh",
        "board",
        directory=str(tmp_path / "home there"),
        device_lock=str(tmp_path / "device.lock"),
        lease_s=10,
        reconnect_s=600,
    )
    told: list[str] = []
    target.say = told.append
    breaks = [1]

    def interrupt(log: str, name: str, report: Any) -> None:
        if log and breaks:
            breaks.clear()
            machine.stop()
            machine.start()
            go.touch()

    monkeypatch.setattr(remote, "_tell", interrupt)
    try:
        host = compile_host(target, 0)
        assert host is not None
        build = built(host, tmp_path / "cache", llama)
    finally:
        target.close()
        machine.stop()
    assert build.version == f"moe-engine 1 build {build.build_id} llama.cpp 7 armv8-a"
    assert not breaks
    assert any("connection lost" in line for line in told)
