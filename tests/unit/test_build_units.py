"""Building without a compiler: sources, toolchain, keys, trust in the cache, failures."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
import time
from pathlib import Path

import pytest

from harness.build import compile as compiling
from harness.build import engine, recipe, source, toolchain
from harness.build.engine import ensure_engine
from harness.build.recipe import ENGINE, LAUNCHER, Order, Recipe, make_recipe
from harness.build.types import BuildProgress, Reporter
from harness.errors import DeviceError, UsageError

SILENT = Reporter(None)


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text + "\n")
    path.chmod(0o755)
    return path


# --- the archive ---------------------------------------------------------------------------------


def archive(path: Path, members: dict[str, bytes | tuple[bytes, str]]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, tuple):
                info.type, info.linkname = content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


def test_only_the_tree_is_unpacked_and_it_is_old(tmp_path: Path) -> None:
    inside = str(source.INSIDE)
    made = archive(
        tmp_path / "a.tar.gz",
        {
            f"{inside}/include/llama.h": b"//",
            f"{inside}/src/models/x.cpp": b"//",
            f"{inside}/.git": b"gitdir: /elsewhere",
            f"{inside}/models/vocab.gguf": b"big",
            f"{source.INSIDE.parts[0]}/setup.py": b"raise SystemExit",
            f"{inside}/link": (tarfile.SYMTYPE, "/etc/passwd"),
        },
    )
    target = tmp_path / "out"
    source.unpack(made, target)
    found = sorted(str(p.relative_to(target)) for p in target.rglob("*") if p.is_file())
    assert found == ["include/llama.h", "src/models/x.cpp"]
    assert (target / "include/llama.h").stat().st_mtime == source.PAST_UNIX_S


@pytest.mark.parametrize("name", ["../../escaped", "/escaped", "x/../../../escaped"])
def test_no_path_leaves_the_target(name: str, tmp_path: Path) -> None:
    inside = str(source.INSIDE)
    members = {f"{inside}/include/llama.h": b"//", f"{inside}/{name}": b"bad"}
    target = tmp_path / "a" / "b" / "out"
    try:
        source.unpack(archive(tmp_path / "a.tar.gz", members), target)
    except DeviceError as e:
        assert "cannot unpack" in str(e)
    assert [p for p in tmp_path.rglob("escaped") if target not in p.parents] == []
    assert not Path("/escaped").exists()


def test_a_broken_archive_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(b"no archive")
    with pytest.raises(DeviceError, match="cannot unpack"):
        source.unpack(path, tmp_path / "out")


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        ("/usr/bin/python: No module named pip", "ensurepip"),
        ("ERROR: Could not find a version\nERROR: No matching distribution found", "No matching"),
        ("   Expected sha256 aa\n        Got        " + "b" * 64, "not the pinned"),
        ("OSError: [Errno 28] No space left on device", "disk full"),
        ("", "no message"),
    ],
)
def test_a_failed_pip_is_one_line(stderr: str, words: str) -> None:
    line = source._why_not(stderr)
    assert words in line
    assert "\n" not in line


def test_a_given_tree_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"llama_cpp_dir.*no include/llama\.h"):
        source.given_source(tmp_path)
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "llama.h").write_text("// 1")
    first = source.given_source(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "x").write_text("not built from")
    assert source.given_source(tmp_path) == first
    (tmp_path / "include" / "llama.h").write_text("// 2")
    assert source.given_source(tmp_path).sha256 != first.sha256


def test_an_altered_pinned_tree_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(directory: Path) -> Path:
        inside = str(source.INSIDE)
        return archive(directory / "a.tar.gz", {f"{inside}/include/llama.h": b"// good"})

    monkeypatch.setattr(source, "download", fetch)
    tree = source.pinned_source(tmp_path, SILENT)
    assert tree.sha256 == source.SHA256
    header = tree.path / "include" / "llama.h"
    header.write_text("// altered")
    notes: list[str] = []
    report = Reporter(lambda s: notes.append(s.message) if s.stage == "note" else None)
    source.pinned_source(tmp_path, report)
    assert header.read_text() == "// good"
    assert len(notes) == 1
    monkeypatch.setattr(source, "download", lambda d: pytest.fail("fetched again"))
    source.pinned_source(tmp_path, SILENT)


# --- the toolchain -------------------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing in it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CC", "CXX", *toolchain.FLAG_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    return folder


def test_a_missing_compiler_is_said_before_anything_starts(bare: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        ensure_engine(cache_dir=tmp_path / "cache")
    assert str(caught.value) == toolchain.NO_COMPILER
    assert not (tmp_path / "cache").exists()


def test_a_compiler_that_is_not_there_or_is_none(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/no/such/g++")
    with pytest.raises(UsageError, match="CXX=/no/such"):
        toolchain.find_toolchain()
    monkeypatch.setenv("CXX", str(script(bare / "odd", "exit 1")))
    monkeypatch.setenv("CC", str(script(bare / "cc", "echo cc 1")))
    with pytest.raises(UsageError, match="no compiler"):
        toolchain.find_toolchain()


def test_the_c_compiler_is_the_cxx_compilers_companion(bare: Path) -> None:
    script(bare / "clang++", "echo clang 1")
    script(bare / "clang", "echo clang 1")
    script(bare / "gcc", "echo gcc 1")
    tools = toolchain.find_toolchain()
    assert (tools.cxx.name, tools.cc.name) == ("clang++", "clang")


def test_compiler_version_and_flags_change_the_identity(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(bare / "gcc", "echo gcc 1")
    script(bare / "g++", "echo g++ 1")
    first = toolchain.find_toolchain().compiler_id
    script(bare / "g++", "echo g++ 2")
    second = toolchain.find_toolchain().compiler_id
    monkeypatch.setenv("CXXFLAGS", "-O0")
    assert len({first, second, toolchain.find_toolchain().compiler_id}) == 3


# --- the build directory -------------------------------------------------------------------------


def test_sources_are_copied_only_where_they_differ(tmp_path: Path) -> None:
    origin, copy = tmp_path / "a", tmp_path / "b"
    (origin / "src").mkdir(parents=True)
    (origin / "same.cpp").write_text("1")
    (origin / "src" / "edited.cpp").write_text("1")
    (origin / "removed.cpp").write_text("1")
    compiling.sync_sources(origin, copy)
    os.utime(copy / "same.cpp", (1, 1))
    os.utime(copy / "src" / "edited.cpp", (1, 1))
    (origin / "src" / "edited.cpp").write_text("2")
    (origin / "removed.cpp").unlink()
    compiling.sync_sources(origin, copy)
    assert (copy / "same.cpp").stat().st_mtime == 1
    assert (copy / "src" / "edited.cpp").read_text() == "2"
    assert (copy / "src" / "edited.cpp").stat().st_mtime > 1
    assert not (copy / "removed.cpp").exists()


def workspace(tmp_path: Path, log: str) -> compiling.Workspace:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    work = compiling.Workspace(tmp_path / "w", tmp_path / "repo" / "engine_src", ".", lock)
    work.home.mkdir()
    work.log.write_text(log)
    return work


def test_a_compile_error_is_shown_at_the_users_file(tmp_path: Path) -> None:
    work = workspace(tmp_path, "")
    noise = "".join(f"[{i}/40] Building CXX object\n" for i in range(40))
    work.log.write_text(f"{noise}FAILED: x.o\n{work.src}/src/x.cpp:3:1: error: no type\n  3 | x\n")
    text = compiling.failure("compiling", work)
    assert text.splitlines()[0] == f"compiling the engine failed; log: {work.log}"
    assert f"{work.origin}/src/x.cpp:3:1: error: no type" in text
    assert len(text.splitlines()) < 15


def test_a_full_disk_and_a_killed_compiler_are_named(tmp_path: Path) -> None:
    work = workspace(tmp_path, "x.o: fatal error: No space left on device\n")
    assert "disk full" in compiling.failure("compiling", work)
    work.log.write_text("g++: fatal error: Killed signal terminated program cc1plus\n")
    assert "memory" in compiling.failure("compiling", work)


def test_ninjas_status_becomes_progress(tmp_path: Path) -> None:
    steps: list[BuildProgress] = []
    work = workspace(tmp_path, "")
    ninja = script(
        tmp_path / "ninja", 'echo "[1/4] Building CXX object a/b.cpp.o"; echo "[4/4] Linking x"'
    )
    tools = toolchain.HostTools(ninja, ninja, "", ninja, ninja)
    compiling.build(work, tools, ("x",), Reporter(steps.append))
    assert [(s.done, s.total, s.fraction) for s in steps] == [(1, 4, 0.25), (4, 4, 1.0)]
    assert steps[0].message == "b.cpp.o"


def test_interrupting_ends_the_compilers(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    log = tmp_path / "log"
    child = script(tmp_path / "child", f"sleep 300 & echo $! > {marker}; echo ready; wait")

    def stop(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compiling.run([str(child)], log, stop)
    pid = int(marker.read_text())
    for _ in range(600):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().split()[2]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.1)
    pytest.fail("a compiler was left running")


# --- publication and trust -----------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Building replaced by writing scripts that answer --version; returns what was built."""
    built: list[str] = []

    def prepare(
        cache: Path, recipe: Recipe, report: Reporter, lock: int, tests: bool = False
    ) -> compiling.Workspace:
        work = compiling.Workspace(cache / "build" / recipe.program, recipe.origin, ".", lock)
        text = f"echo '{recipe.program} 1.0 build {recipe.build_id} llama.cpp x'"
        script(work.bin / recipe.program, text)
        return work

    def build(
        work: compiling.Workspace, tools: object, targets: tuple[str], report: object
    ) -> None:
        built.append(targets[0])

    monkeypatch.setattr(engine, "prepare_workspace", prepare)
    monkeypatch.setattr(compiling, "build", build)
    return built


def test_built_once_then_cached(made: list[str], tmp_path: Path) -> None:
    first = ensure_engine(cache_dir=tmp_path)
    second = ensure_engine(cache_dir=tmp_path)
    assert (first.source, second.source) == ("built", "cached")
    assert made == [ENGINE, LAUNCHER]
    assert first.engine == second.engine
    assert first.version == f"moe-engine 1.0 build {first.build_id} llama.cpp x"


@pytest.mark.parametrize("damage", ["content", "mode", "manifest", "missing"])
def test_what_is_not_as_it_was_built_is_built_again(
    damage: str, made: list[str], tmp_path: Path
) -> None:
    first = ensure_engine(cache_dir=tmp_path)
    if damage == "content":
        with first.engine.open("a") as f:
            f.write("# altered\n")
    elif damage == "mode":
        first.engine.chmod(0o644)
    elif damage == "manifest":
        (first.engine.parent / "manifest.json").write_text("{")
    else:
        first.engine.unlink()
    steps: list[BuildProgress] = []
    again = ensure_engine(cache_dir=tmp_path, progress=steps.append)
    assert again.source == "built"
    assert again.engine == first.engine
    notes = [s.message for s in steps if s.stage == "note"]
    assert len(notes) == 1 and notes[0].startswith("building moe-engine again: ")
    assert ensure_engine(cache_dir=tmp_path).source == "cached"
    leftovers = [p.name for p in (tmp_path / "bin").iterdir() if p.name.startswith(".")]
    assert leftovers == []


def test_an_engine_that_does_not_run_is_not_published(
    made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "version_line", lambda p, run_with: None)
    with pytest.raises(DeviceError, match="does not run"):
        ensure_engine(cache_dir=tmp_path)
    assert not list((tmp_path / "bin").glob(f"{ENGINE}*"))


def test_given_programs(made: list[str], tmp_path: Path) -> None:
    mine = script(tmp_path / "mine", "echo moe-engine 9 build abc llama.cpp x")
    build = ensure_engine(binary=mine, cache_dir=tmp_path / "cache")
    assert (build.source, build.build_id, build.engine) == ("given", "abc", mine)
    assert made == [LAUNCHER]
    other = script(tmp_path / "other", "echo hello")
    build = ensure_engine(binary=other, launcher=mine, cache_dir=tmp_path / "cache")
    assert build.version is None
    assert build.build_id == "sha256-" + hashlib.sha256(other.read_bytes()).hexdigest()[:12]
    assert build.launcher == mine


def test_given_programs_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"engine\.binary.*does not exist"):
        ensure_engine(binary=tmp_path / "none")
    plain = tmp_path / "plain"
    plain.write_text("text")
    with pytest.raises(UsageError, match=r"engine\.launcher.*not executable"):
        ensure_engine(launcher=plain)
    plain.write_bytes(b"\x7fELF\0")
    plain.chmod(0o755)
    with pytest.raises(UsageError, match="cannot be run on this machine"):
        ensure_engine(binary=plain)
    with pytest.raises(UsageError, match="sanitize"):
        ensure_engine(sanitize="memory")


def test_keys_follow_what_goes_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sources = tmp_path / "engine_src"
    (sources / "src").mkdir(parents=True)
    (sources / "launcher" / "src").mkdir(parents=True)
    (sources / "CMakeLists.txt").write_text("1")
    monkeypatch.setattr(recipe, "engine_source_dir", lambda: sources)
    first = make_recipe(ENGINE)
    launcher = make_recipe(LAUNCHER)
    (sources / "src" / "x.cpp").write_text("1")
    second = make_recipe(ENGINE)
    assert first.key != second.key
    # llama.cpp's objects are kept, the launcher is not touched
    assert first.workspace_key == second.workspace_key
    assert make_recipe(LAUNCHER).key == launcher.key
    sanitized = make_recipe(ENGINE, Order(sanitize="thread"))
    assert sanitized.workspace_key != second.workspace_key


def test_published_files_are_readable_by_others(made: list[str], tmp_path: Path) -> None:
    build = ensure_engine(cache_dir=tmp_path)
    assert stat.S_IMODE(build.engine.parent.stat().st_mode) == 0o755
