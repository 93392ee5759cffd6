"""Runs cmake and ninja in a build directory that outlives the build.

The directory is an accelerator: it keeps llama.cpp's objects, so that a change of `engine_src` is
compiled in seconds. What is used afterwards is never taken from it by trust: executables are copied
out, hashed and published elsewhere (`engine.py`).
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.build.source import tree_files
from harness.build.toolchain import Toolchain
from harness.build.types import Reporter
from harness.errors import DeviceError

# ninja prints this before each finished step
STATUS = re.compile(r"^\[(\d+)/(\d+)\] (.*)$")
ENVIRONMENT = {"NINJA_STATUS": "[%f/%t] ", "LC_ALL": "C", "CLICOLOR_FORCE": "0"}
# variables that would change the build behind our back
UNSET = ("CMAKE_GENERATOR", "CMAKE_TOOLCHAIN_FILE", "MAKEFLAGS", "DESTDIR", "CMAKE_BUILD_TYPE")
# a llama.cpp source file needs up to this much memory to compile
JOB_BYTES = 700 * 2**20
TAIL_LINES = 12


@dataclass(frozen=True)
class Workspace:
    """One persistent build directory; `src` is a copy of engine_src, so that paths are stable."""

    home: Path
    origin: Path
    project: str  # the directory in it that holds the CMakeLists.txt to build
    # File descriptor of the build lock, handed on to ninja: should we be killed, the compilers that
    # are still running keep the next builder out of this directory until they are done.
    lock: int

    @property
    def src(self) -> Path:
        """The copy that is compiled."""
        return self.home / "src"

    @property
    def out(self) -> Path:
        """CMake's binary directory."""
        return self.home / "out"

    @property
    def bin(self) -> Path:
        """Where the executables come out."""
        return self.out / "bin"

    @property
    def log(self) -> Path:
        """All output of the last build."""
        return self.home / "build.log"


def sync_sources(origin: Path, copy: Path) -> None:
    """Make `copy` equal to `origin`; equal files keep their times, so ninja leaves them alone."""
    wanted = {f.relative_to(origin): f for f in tree_files(origin, (".",))}
    for old in tree_files(copy, (".",)) if copy.is_dir() else []:
        if old.relative_to(copy) not in wanted:
            old.unlink()
    for relative, source in wanted.items():
        target = copy / relative
        if target.is_file() and filecmp.cmp(source, target, shallow=False):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        # not copy2: the copy is new to ninja, however old the original is
        shutil.copyfile(source, target)
        target.chmod(0o644)


def jobs() -> int:
    """Parallel compilations: one per usable core, as far as memory allows."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    available = _available_bytes()
    return max(1, cores if available is None else min(cores, available // JOB_BYTES))


def _available_bytes() -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def configure(
    work: Workspace, tools: Toolchain, variables: Mapping[str, str], report: Reporter
) -> None:
    """Run cmake. DeviceError with the log's end when it fails."""
    report("configure", "configuring")
    work.log.unlink(missing_ok=True)
    settings = {**tools.variables(work.home), **variables}
    command = [
        *(str(tools.cmake), "-S", str(work.src / work.project), "-B", str(work.out), "-G", "Ninja"),
        f"-DCMAKE_MAKE_PROGRAM={tools.ninja}",
        f"-DCMAKE_RUNTIME_OUTPUT_DIRECTORY={work.bin}",
        "-DCMAKE_BUILD_TYPE=Release",
        *(f"-D{name}={value}" for name, value in sorted(settings.items())),
    ]
    code = run(command, work.log, lambda line: None, work.lock)
    if code != 0:
        raise DeviceError(failure("configuring", work))


def build(work: Workspace, tools: Toolchain, targets: tuple[str, ...], report: Reporter) -> None:
    """Run ninja for `targets`. DeviceError with the log's end when it fails."""

    def line(text: str) -> None:
        found = STATUS.match(text)
        if found:
            done, total, what = int(found[1]), int(found[2]), found[3]
            report("compile", what.rsplit("/", 1)[-1][:60], done, total)

    command = [str(tools.ninja), "-C", str(work.out), "-j", str(jobs()), *targets]
    code = run(command, work.log, line, work.lock)
    if code != 0:
        raise DeviceError(failure("compiling", work))


def run(
    command: list[str], log: Path, on_line: Callable[[str], None], lock: int | None = None
) -> int:
    """Run `command`, append its output to `log`, pass each line on; its children end with us."""
    env = {k: v for k, v in os.environ.items() if k not in UNSET} | ENVIRONMENT
    with (
        log.open("a", encoding="utf-8") as out,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=env,
            start_new_session=True,
            pass_fds=() if lock is None else (lock,),
        ) as child,
    ):
        out.write("$ " + " ".join(command) + "\n")
        try:
            for text in child.stdout or ():
                out.write(text)
                on_line(text.rstrip("\n"))
            return child.wait()
        except BaseException:
            # a session of its own: Ctrl-C reaches only us, and the compilers must not stay behind
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
            raise


def failure(doing: str, work: Workspace) -> str:
    """What went wrong: one line, the end of the log, where the log is."""
    try:
        lines = work.log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    space = f"in {work.home}; free some or set engine.cache_dir=DIR"
    return explain_failure(
        f"{doing} the engine", lines, work.log, space, {str(work.src): str(work.origin)}
    )


def explain_failure(
    what: str, lines: list[str], log: Path, space: str, originals: Mapping[str, str]
) -> str:
    """One line and the end of a log. `space`: where it may be lacking and what to do then;
    `originals`: errors point into copies, the user's files are these."""
    if any("No space left on device" in x for x in lines):
        return f"{what} failed: no space left on the device (disk full) {space}"
    if any("Killed signal" in x or "Killed (program" in x for x in lines):
        return f"{what} failed: a compiler was killed, most likely for lack of memory; log: {log}"
    shown = interesting(lines)
    for copy, original in originals.items():
        shown = [x.replace(copy, original) for x in shown]
    return "\n".join([f"{what} failed; log: {log}", *(f"  {x}" for x in shown)])


def interesting(lines: list[str]) -> list[str]:
    """The lines from the first error on, at most TAIL_LINES; the end of the log without one."""
    lines = [x for x in lines if x.strip() and not STATUS.match(x)]
    first = next((i for i, x in enumerate(lines) if re.search(r"\berror\b", x, re.I)), None)
    if first is None:
        return lines[-TAIL_LINES:]
    return lines[first : first + TAIL_LINES]
