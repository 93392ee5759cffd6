"""`ensure_engine`: executables that are built, checked and ready, or one line that says why not.

A published executable lies in `<cache>/bin/<name>-<key>/`; the key is a hash over all that it is
made from: our sources, llama.cpp's hash, compilers and flags, CMake variables, machine. Beside it
lies a manifest with its SHA-256. Before every use the file is hashed again; on a mismatch it is
made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.build import compile as compiling
from harness.build.resources import engine_source_dir
from harness.build.source import SHA256 as PINNED_SHA256
from harness.build.source import LlamaSource, given_source, pinned_source, tree_sha256
from harness.build.toolchain import Toolchain, cpu_level, find_toolchain, machine
from harness.build.types import EngineBuild, Progress, Reporter, Source
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
from harness.engine_env import engine_environment
from harness.errors import DeviceError, UsageError

ENGINE = "moe-engine"
LAUNCHER = "moe-launcher"
# of engine_src; the launcher is a project of its own, and the C++ tests are in neither
PARTS = {
    ENGINE: ("CMakeLists.txt", "cmake", "src"),
    LAUNCHER: ("launcher/CMakeLists.txt", "launcher/src", "src/sha256.cpp", "src/sha256.h"),
}
SANITIZERS = ("", "address", "thread")
# measured: 38 MiB of objects and archives, 9 MiB of executable; with sanitizers an upper guess
SPACE_BYTES = {"": 150 * 2**20, "address": 1000 * 2**20, "thread": 1000 * 2**20}
LAUNCHER_SPACE_BYTES = 50 * 2**20
# raised when the layout of the cache changes
LAYOUT = 1
VERSION_LINE = re.compile(r"^moe-engine \S+ build (\S+)")


@dataclass(frozen=True)
class Recipe:
    """What one executable is made from. The launcher is made apart: it changes less often."""

    program: str
    tools: Toolchain
    origin: Path  # engine_src
    sources_sha256: str
    llama: LlamaSource | None  # None: the launcher, which has nothing of llama.cpp
    llama_place: str  # where its objects may be shared: the pinned tree, or one directory
    sanitize: str

    @property
    def variables(self) -> dict[str, str]:
        """CMake variables that decide about the objects, so without the build id."""
        result = {"MOE_SANITIZE": self.sanitize}
        if self.llama is not None:
            result["MOE_CPU_LEVEL"] = cpu_level()
        return result

    @property
    def workspace_key(self) -> str:
        """Names the build directory: everything but sources that are edited between builds."""
        parts = [LAYOUT, machine(), self.tools.compiler_id, self.variables, self.llama_place]
        return _digest([*parts, self.program])

    @property
    def key(self) -> str:
        """Names the executable; its first 12 digits are the engine's build id."""
        llama = self.llama.sha256 if self.llama is not None else None
        return _digest([self.workspace_key, self.sources_sha256, llama])

    @property
    def build_id(self) -> str:
        """What the engine reports as its own."""
        return self.key[:12]

    @property
    def parts(self) -> tuple[str, ...]:
        """What of engine_src it is made from."""
        return PARTS[self.program]


def ensure_engine(
    *,
    binary: Path | None = None,
    launcher: Path | None = None,
    llama_cpp_dir: Path | None = None,
    cache_dir: Path | None = None,
    sanitize: str = "",
    progress: Progress | None = None,
) -> EngineBuild:
    """Checked `moe-engine` and `moe-launcher`: given, from the cache, or built now.

    `binary` and `launcher` are used as they are; where only the engine is given the launcher is
    built alone (seconds, no llama.cpp). `llama_cpp_dir` replaces the pinned llama.cpp. `sanitize`
    is "", "address" or "thread". Raises UsageError before anything starts when something is missing
    (compiler, file, space, pip), DeviceError with the end of the log when the build fails.
    """
    if sanitize not in SANITIZERS:
        raise UsageError(f"sanitize={sanitize}: needs one of {', '.join(map(repr, SANITIZERS))}")
    report = Reporter(progress)
    given_engine = given_program(binary, "engine.binary")
    given_launcher = given_program(launcher, "engine.launcher")
    if given_engine is None:
        engine, made = _ensure(ENGINE, llama_cpp_dir, cache_dir, sanitize, report)
    else:
        engine, made = given_engine, False
    version, build_id = describe(engine)
    if given_launcher is None:
        given_launcher, _ = _ensure(LAUNCHER, None, cache_dir, sanitize, report)
    source: Source = "given" if engine is given_engine else "built" if made else "cached"
    return EngineBuild(engine, given_launcher, build_id, version, source)


def given_program(path: Path | None, key: str) -> Path | None:
    """An executable that the user named, or None. UsageError when it is not one."""
    if path is None:
        return None
    found = Path(path).expanduser().absolute()
    if not found.is_file():
        raise UsageError(f"{key}: {found} does not exist or is no file; give an executable")
    if not os.access(found, os.X_OK):
        raise UsageError(f"{key}: {found} is not executable; chmod +x it")
    return found


def describe(engine: Path) -> tuple[str | None, str]:
    """The engine's `--version` line (None: not a moe-engine) and its build id.

    Without a line the id is made from the file's SHA-256. UsageError when it cannot be run here.
    """
    line = version_line(engine)
    found = VERSION_LINE.match(line or "")
    if found is None:
        return None, f"sha256-{sha256_file(engine)[:12]}"
    return line, found[1]


def version_line(program: Path) -> str | None:
    """First line of `PROGRAM --version`, None when it fails. UsageError when it cannot be run."""
    try:
        done = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
            check=False,
            stdin=subprocess.DEVNULL,
            env=engine_environment(),
        )
    except subprocess.TimeoutExpired:
        return None
    except OSError as e:
        raise UsageError(f"{program}: cannot be run on this machine ({e.strerror})") from e
    lines = done.stdout.splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def make_recipe(program: str, llama_cpp_dir: Path | None = None, sanitize: str = "") -> Recipe:
    """The recipe for this machine, now. The pinned tree is named by its hash and not fetched."""
    tools = find_toolchain()
    origin = engine_source_dir()
    sha256 = tree_sha256(origin, PARTS[program])
    if program != ENGINE:
        return Recipe(program, tools, origin, sha256, None, "none", sanitize)
    if llama_cpp_dir is None:
        pinned = LlamaSource(Path(), PINNED_SHA256)
        return Recipe(program, tools, origin, sha256, pinned, PINNED_SHA256, sanitize)
    given = given_source(llama_cpp_dir)
    return Recipe(program, tools, origin, sha256, given, str(given.path), sanitize)


def _ensure(
    program: str,
    llama_cpp_dir: Path | None,
    cache_dir: Path | None,
    sanitize: str,
    report: Reporter,
) -> tuple[Path, bool]:
    """The checked executable, and whether it was made now."""
    recipe = make_recipe(program, llama_cpp_dir, sanitize)
    cache = cache_root(cache_dir)
    folder = cache / "bin" / f"{program}-{recipe.key[:24]}"
    if check_published(folder, recipe) is None:
        return folder / program, False
    with locked(cache / "locks" / "build.lock", lambda line: report("wait", line)) as lock:
        # another process may have made it while we waited
        problem = check_published(folder, recipe)
        if problem is None:
            return folder / program, False
        if folder.exists():
            report("note", f"building {program} again: {problem}")
        with guarded(f"building {program}", cache):
            work = prepare_workspace(cache, recipe, report, lock)
            compiling.build(work, recipe.tools, (program,), report)
            report("check", f"checking {program}")
            _publish(work, folder, recipe)
        report("check", f"built {program} {recipe.build_id}")
        return folder / program, True


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
    manifest = read_json(folder / "manifest.json")
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


def _publish(work: compiling.Workspace, folder: Path, recipe: Recipe) -> None:
    """Copy the executable out, see it run, write the manifest, rename into place."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder.parent, ".new-")
    remove_leftovers(folder.parent, ".old-")
    new = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    program = new / recipe.program
    shutil.copyfile(work.bin / recipe.program, program)
    program.chmod(0o755)
    line = version_line(program)
    if line is None or (recipe.program == ENGINE and recipe.build_id not in line):
        raise DeviceError(
            f"the built {recipe.program} does not run here: `{work.bin / recipe.program} "
            f"--version` answered {line!r}; log: {work.log}"
        )
    write_json(
        new / "manifest.json",
        {
            "key": recipe.key,
            "build_id": recipe.build_id,
            "sha256": sha256_file(program),
            "llama_cpp_sha256": recipe.llama.sha256 if recipe.llama else None,
            "sources_sha256": recipe.sources_sha256,
            "compiler": recipe.tools.compiler_id,
            "variables": recipe.variables,
            "machine": machine(),
        },
    )
    new.chmod(0o755)
    publish_dir(new, folder)


def _digest(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
