"""Compiler, cmake and ninja of this machine: which ones, what identifies them.

Runs `--version`, and one small link to find out whether programs can be static. Compilers for other
machines: `cross`.
"""

from __future__ import annotations

import abc
import importlib.util
import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UsageError

NO_COMPILER = "no C++ compiler found: install g++ (Debian: apt-get install g++) or set CXX"
# compiled into the binaries, so they belong to the build's identity
FLAG_VARIABLES = ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS")
STATIC_PROGRAM = "#include <thread>\nint main(){std::thread t([]{});t.join();}\n"


@dataclass(frozen=True)
class Toolchain(abc.ABC):
    """Absolute paths of cmake and ninja, and the text that identifies the compilers."""

    cmake: Path
    ninja: Path
    compiler_id: str

    @abc.abstractmethod
    def variables(self, home: Path) -> dict[str, str]:
        """CMake variables that choose the compilers; what they need is written below `home`."""


@dataclass(frozen=True)
class HostTools(Toolchain):
    """The compilers of this machine."""

    cc: Path
    cxx: Path

    def variables(self, home: Path) -> dict[str, str]:
        """Nothing is written."""
        return {"CMAKE_C_COMPILER": str(self.cc), "CMAKE_CXX_COMPILER": str(self.cxx)}


def find_toolchain() -> HostTools:
    """The tools of this machine. UsageError, one line, names the first that is missing."""
    cxx = _compiler("CXX", ("g++", "clang++", "c++"))
    if cxx is None:
        raise UsageError(NO_COMPILER)
    cc = _compiler("CC", (*_companions(cxx), "cc", "gcc", "clang"))
    if cc is None:
        raise UsageError("no C compiler found: install gcc (Debian: apt-get install gcc) or set CC")
    identity = "\n".join(
        [f"{path}\n{_version(path, name)}" for path, name in ((cxx, "CXX"), (cc, "CC"))]
        + flag_variables()
    )
    return HostTools(find_tool("cmake"), find_tool("ninja"), identity, cc, cxx)


def flag_variables() -> list[str]:
    """The variables that add to every compiler's flags, for its identity."""
    return [f"{name}={os.environ.get(name, '')}" for name in FLAG_VARIABLES]


def links_statically(tools: HostTools) -> bool:
    """Whether a C++ program can be linked with all that it needs, as the executables are."""
    with tempfile.TemporaryDirectory(prefix="moe-static-") as folder:
        source = Path(folder, "static.cpp")
        source.write_text(STATIC_PROGRAM, encoding="ascii")
        command = [str(tools.cxx), "-static", "-pthread", str(source), "-o", f"{source}.out"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=120, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0


def machine_name() -> str:
    """The machine's architecture, as the binaries depend on it."""
    return f"{platform.system()}-{platform.machine()}".lower()


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


def find_tool(name: str) -> Path:
    """cmake or ninja, from the Python package `name` (a dependency of ours), else from PATH."""
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
