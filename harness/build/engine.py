"""`ensure_engine`: executables that are built, checked and ready, or one line that says why not.

A published executable lies in `<cache>/bin/<name>-<key>/`; the key is a hash over all that it is
made from: our sources, llama.cpp's hash, compilers and flags, CMake variables, machine (`recipe`).
Beside it lies a manifest with its SHA-256. Before every use the file is hashed again; on a mismatch
it is made again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.build import compile as compiling
from harness.build.host import BuildHost, RemoteTools
from harness.build.machine import TargetMachine, elf_architecture
from harness.build.programs import describe, given_program, version_line
from harness.build.recipe import ENGINE, LAUNCHER, Order, Recipe, make_recipe
from harness.build.remote import RemoteBuild, build_there
from harness.build.source import SHA256 as PINNED_SHA256
from harness.build.source import pinned_source, tree_sha256
from harness.build.types import EngineBuild, Progress, Reporter, Source, ToolchainKind
from harness.cachedir import (
    cache_root,
    guarded,
    locked,
    publish_dir,
    read_json,
    remove_leftovers,
    require_space,
    sha256_file,
    write_json,
)
from harness.errors import DeviceError

# measured: 38 MiB of objects and archives, 9 MiB of executable; with sanitizers an upper guess
SPACE_BYTES = {"": 150 * 2**20, "address": 1000 * 2**20, "thread": 1000 * 2**20}
LAUNCHER_SPACE_BYTES = 50 * 2**20
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Made:
    """A checked executable in the cache."""

    path: Path
    recipe: Recipe
    fresh: bool  # made now


def ensure_engine(
    *,
    binary: Path | None = None,
    launcher: Path | None = None,
    llama_cpp_dir: Path | None = None,
    cache_dir: Path | None = None,
    sanitize: str = "",
    toolchain: ToolchainKind | None = None,
    machine: TargetMachine | None = None,
    ndk_dir: Path | None = None,
    host: BuildHost | None = None,
    progress: Progress | None = None,
) -> EngineBuild:
    """Checked `moe-engine` and `moe-launcher`: given, from the cache, or built now.

    `binary` and `launcher` are used as they are; where only the engine is given the launcher is
    built alone (seconds, no llama.cpp). `llama_cpp_dir` replaces the pinned llama.cpp. `sanitize`
    is "", "address" or "thread". `machine` is the target's, None this one; without `toolchain` it
    is this machine's where that makes static programs of the architecture, else zig. `host`: the
    target, to be compiled on where toolchain "host" is asked for and this machine's does not do.
    Raises UsageError before anything starts when something is missing (compiler, file, space, pip),
    DeviceError with the end of the log when the build fails.
    """
    order = Order(llama_cpp_dir, sanitize, toolchain, machine, ndk_dir, host)
    report = Reporter(progress)
    given_engine = given_program(binary, "engine.binary", machine)
    given_launcher = given_program(launcher, "engine.launcher", machine)
    source: Source
    if given_engine is not None:
        engine, source = given_engine, "given"
        version, build_id = describe(engine, machine)
    else:
        made = ensure_program(ENGINE, order, cache_dir, report)
        engine, source = made.path, "built" if made.fresh else "cached"
        version, build_id = _version(made), made.recipe.build_id
    if given_launcher is None:
        given_launcher = ensure_program(LAUNCHER, order, cache_dir, report).path
    return EngineBuild(engine, given_launcher, build_id, version, source, sha256_file(engine))


def _version(made: Made) -> str | None:
    """What a built engine says itself, where it can be run here; else what it said when built."""
    if made.recipe.run_with is not None:
        return version_line(made.path, made.recipe.run_with)
    manifest = read_json(made.path.with_name(MANIFEST)) or {}
    version = manifest.get("version")
    return version if isinstance(version, str) else None


def ensure_program(program: str, order: Order, cache_dir: Path | None, report: Reporter) -> Made:
    """One of the two, from the cache or made now."""
    recipe = make_recipe(program, order)
    cache = cache_root(cache_dir)
    folder = cache / "bin" / f"{program}-{recipe.key[:24]}"
    if check_published(folder, recipe) is None:
        return Made(folder / program, recipe, False)
    with locked(cache / "locks" / "build.lock", lambda line: report("wait", line)) as lock:
        # another process may have made it while we waited
        problem = check_published(folder, recipe)
        if problem is None:
            return Made(folder / program, recipe, False)
        if folder.exists():
            report("note", f"building {program} again: {problem}")
        with guarded(f"building {program}", cache):
            if isinstance(recipe.tools, RemoteTools):
                _build_there(cache, recipe, recipe.tools, folder, report)
            else:
                work = prepare_workspace(cache, recipe, report, lock)
                compiling.build(work, recipe.tools, (program,), report)
                report("check", f"checking {program}")
                made = work.bin / program
                _publish(made, folder, recipe, _check_built(made, recipe, work.log))
        report("check", f"built {program} {recipe.build_id}")
        return Made(folder / program, recipe, True)


def prepare_workspace(
    cache: Path, recipe: Recipe, report: Reporter, lock: int, tests: bool = False
) -> compiling.Workspace:
    """The persistent build directory with current sources, configured; `lock` is the build lock."""
    home = cache / "build" / f"{recipe.program}-{recipe.workspace_key[:24]}"
    work = compiling.Workspace(home, recipe.origin, "." if recipe.llama else "launcher", lock)
    if not (work.out / "build.ninja").exists():
        space = SPACE_BYTES[recipe.sanitize] if recipe.llama else LAUNCHER_SPACE_BYTES
        require_space(cache, space, f"building {recipe.program}")
    llama = recipe.llama
    if llama is not None and llama.sha256 == PINNED_SHA256:
        llama = pinned_source(cache, report)
    compiling.sync_sources(recipe.origin, work.src)
    if tree_sha256(work.src, recipe.parts) != recipe.sources_sha256:
        raise DeviceError(f"{recipe.origin} changed while the build began; run it again")
    variables = {**recipe.variables, "MOE_BUILD_TESTS": "ON" if tests else "OFF"}
    if llama is not None:
        variables |= {"MOE_BUILD_ID": recipe.build_id, "MOE_LLAMA_DIR": str(llama.path)}
    compiling.configure(work, recipe.tools, variables, report)
    return work


def check_published(folder: Path, recipe: Recipe) -> str | None:
    """None when `folder` holds the recipe's executable unaltered, else what is wrong."""
    manifest = read_json(folder / MANIFEST)
    if manifest is None:
        return "its manifest is missing or damaged"
    if manifest.get("key") != recipe.key:
        return "its manifest is of something else"
    path = folder / recipe.program
    try:
        found = sha256_file(path)
    except OSError as e:
        return f"{path} cannot be read ({e.strerror})"
    if found != manifest.get("sha256"):
        return f"{path} is not as it was built (its SHA-256 differs)"
    return None if os.access(path, os.X_OK) else f"{path} is not executable"


def _build_there(
    cache: Path, recipe: Recipe, tools: RemoteTools, folder: Path, report: Reporter
) -> None:
    """Compile it on the target, and keep what comes back."""
    llama = recipe.llama
    variables = {**recipe.variables, "MOE_BUILD_TESTS": "OFF"}
    if llama is not None:
        variables["MOE_BUILD_ID"] = recipe.build_id
        if llama.sha256 == PINNED_SHA256:
            llama = pinned_source(cache, report)
    workspace = f"{recipe.program}-{recipe.workspace_key[:24]}"
    build = RemoteBuild(
        tools, recipe.program, workspace, recipe.origin, recipe.parts, llama, variables
    )
    with tempfile.TemporaryDirectory(prefix="moe-built-") as scratch:
        made = Path(scratch, recipe.program)
        log = cache / "build" / workspace / "build.log"
        line = build_there(build, log, made, report)
        _require_answer(line, recipe, f"on {tools.host.name} {recipe.program}", log)
        _publish(made, folder, recipe, line)


def _publish(made: Path, folder: Path, recipe: Recipe, version: str | None) -> None:
    """Copy the executable out, write the manifest, rename into place."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder.parent, ".new-")
    remove_leftovers(folder.parent, ".old-")
    new = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    program = new / recipe.program
    shutil.copyfile(made, program)
    program.chmod(0o755)
    write_json(
        new / MANIFEST,
        {
            "key": recipe.key,
            "build_id": recipe.build_id,
            "sha256": sha256_file(program),
            "version": version,
            "llama_cpp_sha256": recipe.llama.sha256 if recipe.llama else None,
            "sources_sha256": recipe.sources_sha256,
            "compiler": recipe.tools.compiler_id,
            "variables": recipe.variables,
            "machine": recipe.system,
        },
    )
    new.chmod(0o755)
    publish_dir(new, folder)


def _check_built(program: Path, recipe: Recipe, log: Path) -> str | None:
    """See it run, under an emulator if need be: its answer. None: nothing here can run it."""
    if recipe.run_with is None:
        architecture = elf_architecture(program)
        if architecture != recipe.machine.architecture:
            raise DeviceError(
                f"the built {recipe.program} is for {architecture or 'no known processor'}, "
                f"not for {recipe.machine.architecture}; log: {log}"
            )
        return None
    line = version_line(program, recipe.run_with)
    _require_answer(line, recipe, " ".join([*recipe.run_with, str(program)]), log)
    return line


def _require_answer(line: str | None, recipe: Recipe, command: str, log: Path) -> None:
    if not line or (recipe.program == ENGINE and recipe.build_id not in line):
        raise DeviceError(
            f"the built {recipe.program} does not run: `{command} --version` "
            f"answered {line!r}; log: {log}"
        )
