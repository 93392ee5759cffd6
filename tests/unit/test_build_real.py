"""Real cmake, ninja and compiler on a small project in the launcher's place; the real pip once."""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import time
from pathlib import Path

import pytest

from harness.build import recipe, source
from harness.build.engine import ensure_program
from harness.build.machine import machine_at
from harness.build.programs import version_line
from harness.build.recipe import LAUNCHER, Order
from harness.build.types import BuildProgress, Reporter
from harness.errors import DeviceError, UsageError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PROJECT = """
cmake_minimum_required(VERSION 3.16)
project(small LANGUAGES CXX)
add_executable(moe-launcher src/main.cpp src/other.cpp)
"""
MAIN = (
    '#include <cstdio>\nint other();\nint main() { std::printf("moe-launcher %d\\n", other()); }\n'
)
OTHER = "int other() { return 1; }\n"


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An engine_src whose launcher compiles in a second."""
    folder = tmp_path / "engine_src"
    (folder / "launcher" / "src").mkdir(parents=True)
    (folder / "launcher" / "CMakeLists.txt").write_text(PROJECT)
    (folder / "launcher" / "src" / "main.cpp").write_text(MAIN)
    (folder / "launcher" / "src" / "other.cpp").write_text(OTHER)
    monkeypatch.setattr(recipe, "engine_source_dir", lambda: folder)
    return folder


def build(cache: Path, steps: list[BuildProgress] | None = None) -> tuple[Path, bool]:
    report = Reporter(steps.append if steps is not None else None)
    made = ensure_program(LAUNCHER, Order(), cache, report)
    return made.path, made.fresh


def test_an_edit_compiles_only_what_it_touches(sources: Path, tmp_path: Path) -> None:
    first, made = build(tmp_path / "cache")
    assert made
    assert version_line(first) == "moe-launcher 1"
    (sources / "launcher" / "src" / "other.cpp").write_text(OTHER.replace("1", "2"))
    steps: list[BuildProgress] = []
    second, made = build(tmp_path / "cache", steps)
    assert made
    assert version_line(second) == "moe-launcher 2"
    compiled = [s.message for s in steps if s.message.endswith(".o")]
    assert compiled == ["other.cpp.o"]
    # the old one is still there, and back at once when the edit is undone
    assert version_line(first) == "moe-launcher 1"
    (sources / "launcher" / "src" / "other.cpp").write_text(OTHER)
    assert build(tmp_path / "cache") == (first, False)


def test_a_compile_error_names_the_users_file_and_the_log(sources: Path, tmp_path: Path) -> None:
    broken = sources / "launcher" / "src" / "other.cpp"
    broken.write_text("int other() { return nothing; }\n")
    with pytest.raises(DeviceError) as caught:
        build(tmp_path / "cache")
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("compiling the engine failed; log: ")
    assert Path(lines[0].rpartition("log: ")[2]).is_file()
    assert any(f"{broken}:1:" in x and "nothing" in x for x in lines)
    broken.write_text(OTHER)
    assert build(tmp_path / "cache")[1]


def _build_in_process(cache: str, folder: str, log: str) -> None:
    recipe.engine_source_dir = lambda: Path(folder)
    _, made = build(Path(cache))
    with Path(log).open("a") as f:
        f.write(f"{made}\n")


def test_two_at_once_build_once(sources: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    log = tmp_path / "log"
    args = (str(tmp_path / "cache"), str(sources), str(log))
    processes = [context.Process(target=_build_in_process, args=args) for _ in range(3)]
    for p in processes:
        p.start()
    for p in processes:
        p.join()
        assert p.exitcode == 0
    assert sorted(log.read_text().split()) == ["False", "False", "True"]


@pytest.mark.parametrize("after_s", [0.3, 1.0, 1.5, 2.0])
def test_a_killed_build_is_simply_done_again(after_s: float, sources: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    args = (str(tmp_path / "cache"), str(sources), str(tmp_path / "log"))
    process = context.Process(target=_build_in_process, args=args)
    process.start()
    time.sleep(after_s)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    found, _ = build(tmp_path / "cache")
    assert version_line(found) == "moe-launcher 1"


def test_the_pinned_source_comes_through_pip(tmp_path: Path) -> None:
    """Needs the package index; nothing of the archive is run, no build tools are fetched."""
    tree = source.pinned_source(tmp_path, Reporter(None)).path
    assert (tree / "CMakeLists.txt").is_file()
    assert (tree / "src" / "models" / "qwen3moe.cpp").is_file()
    assert not (tree / ".git").exists()
    assert not list((tmp_path / "src").glob(".new-*"))


def test_another_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "SHA256", "0" * 64)
    with pytest.raises(UsageError, match="not the pinned"):
        source.pinned_source(tmp_path, Reporter(None))
    assert list((tmp_path / "src").iterdir()) == []


NDK = """
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ANDROID_ABI ANDROID_PLATFORM ANDROID_STL)
if(NOT ANDROID_PLATFORM STREQUAL "android-28" OR NOT ANDROID_STL STREQUAL "c++_static")
    message(FATAL_ERROR "asked for ${ANDROID_PLATFORM} ${ANDROID_STL}")
endif()
set(CMAKE_SYSTEM_NAME Linux)
if(ANDROID_ABI STREQUAL "x86_64")
    set(CMAKE_SYSTEM_PROCESSOR x86_64)
elseif(ANDROID_ABI STREQUAL "arm64-v8a")
    set(CMAKE_SYSTEM_PROCESSOR aarch64)
else()
    message(FATAL_ERROR "asked for ${ANDROID_ABI}")
endif()
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the compiler here is for x86-64")
def test_an_ndk_compiles_by_its_toolchain_file(sources: Path, tmp_path: Path) -> None:
    """No NDK is here: a toolchain file that takes the same variables, and this compiler."""
    ndk = tmp_path / "ndk"
    (ndk / "build" / "cmake").mkdir(parents=True)
    (ndk / "build" / "cmake" / "android.toolchain.cmake").write_text(NDK)
    order = Order(toolchain="ndk", machine=machine_at("x86_64", None, True), ndk_dir=ndk)
    made = ensure_program(LAUNCHER, order, tmp_path / "cache", Reporter(None))
    assert made.fresh
    assert not ensure_program(LAUNCHER, order, tmp_path / "cache", Reporter(None)).fresh
    # what it makes is looked at, as it cannot be run
    order = Order(toolchain="ndk", machine=machine_at("aarch64", None, True), ndk_dir=ndk)
    with pytest.raises(DeviceError, match="moe-launcher is for x86_64, not for aarch64"):
        ensure_program(LAUNCHER, order, tmp_path / "cache", Reporter(None))
