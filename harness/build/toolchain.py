"""Compiler, cmake and ninja: which ones, what identifies them. Runs `--version`, nothing else."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UsageError

NO_COMPILER = "no C++ compiler found: install g++ (Debian: apt-get install g++) or set CXX"
# compiled into the binaries, so they belong to the build's identity
FLAG_VARIABLES = ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS")
AVX2_FLAGS = {"avx2", "fma", "f16c", "bmi2"}


@dataclass(frozen=True)
class Toolchain:
    """Absolute paths of the tools, and the text that identifies the compilers."""

    cc: Path
    cxx: Path
    cmake: Path
    ninja: Path
    compiler_id: str


def find_toolchain() -> Toolchain:
    """The tools of this machine. UsageError, one line, names the first that is missing."""
    cxx = _compiler("CXX", ("g++", "clang++", "c++"))
    if cxx is None:
        raise UsageError(NO_COMPILER)
    cc = _compiler("CC", (*_companions(cxx), "cc", "gcc", "clang"))
    if cc is None:
        raise UsageError("no C compiler found: install gcc (Debian: apt-get install gcc) or set CC")
    identity = "\n".join(
        [f"{path}\n{_version(path, name)}" for path, name in ((cxx, "CXX"), (cc, "CC"))]
        + [f"{name}={os.environ.get(name, '')}" for name in FLAG_VARIABLES]
    )
    return Toolchain(cc, cxx, _tool("cmake"), _tool("ninja"), identity)


def machine() -> str:
    """The machine's architecture, as the binaries depend on it."""
    return f"{platform.system()}-{platform.machine()}".lower()


def cpu_level(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """`avx2`, or `baseline` for an x86-64 CPU without it; other CPUs ignore the level."""
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return "baseline"
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "baseline"
    flags = next((x for x in lines if x.startswith("flags")), "").split()
    return "avx2" if set(flags) >= AVX2_FLAGS else "baseline"


def _companions(cxx: Path) -> tuple[str, ...]:
    """The C compilers that belong to a C++ compiler: g++-13 has gcc-13 beside it."""
    name = cxx.name
    if "clang++" in name:
        return (str(cxx.with_name(name.replace("clang++", "clang"))),)
    if "g++" in name:
        return (str(cxx.with_name(name.replace("g++", "gcc"))),)
    return ()


def _compiler(variable: str, names: tuple[str, ...]) -> Path | None:
    asked = os.environ.get(variable, "").strip()
    if asked:
        found = shutil.which(asked)
        if found is None:
            raise UsageError(
                f"{variable}={asked}: no such compiler; correct {variable} or unset it"
            )
        return Path(found).absolute()
    for name in names:
        found = shutil.which(name)
        if found is not None:
            return Path(found).absolute()
    return None


def _version(path: Path, variable: str) -> str:
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise UsageError(f"{path}: cannot be run as a compiler ({e}); set {variable}") from e
    if done.returncode != 0:
        raise UsageError(f"{path}: `--version` failed, so it is no compiler; set {variable}")
    return done.stdout.strip()


def _tool(name: str) -> Path:
    """From the Python package `name` (a dependency of ours), else from PATH."""
    spec = importlib.util.find_spec(name)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        # the program itself, without the Python wrapper that the scripts directory holds
        inside = Path(folder) / "data" / "bin" / name
        if os.access(inside, os.X_OK):
            return inside
    beside = Path(sysconfig.get_path("scripts")) / name
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which(name)
    if found is None:
        raise UsageError(f"{name} not found: pip install {name}")
    return Path(found).absolute()
