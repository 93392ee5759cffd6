"""Compilers for other machines: zig's, which a Python package carries, and Android's NDK.

zig makes static executables with musl, so they need nothing of the target but its kernel. The NDK
makes executables of Android's own C library, with C++'s linked in.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from harness.build.machine import TargetMachine
from harness.build.toolchain import Toolchain, find_tool, flag_variables
from harness.errors import UsageError

NO_ZIG = "build.toolchain: zig is not installed; pip install 'ziglang>=0.17,<0.18'"
# names of one file each in a build directory; CMake wants programs, not `zig cc`
# -O2, which CMake's flags overrule, and -s, for every call alike: zig compiles its C and C++
# libraries anew for other ones (a minute and a half). Debug information would be 55 of 62 MB.
_ZIG_FLAGS = "-target {target} -O2 -s"
_ZIG_TOOLS = {"cc": f"cc {_ZIG_FLAGS}", "c++": f"c++ {_ZIG_FLAGS}", "ar": "ar", "ranlib": "ranlib"}
NDK_VARIABLE = "ANDROID_NDK_HOME"
# Android 9: the oldest with everything that engine and launcher ask of the C library
ANDROID_PLATFORM = "android-28"
_ABIS = {"aarch64": "arm64-v8a", "x86_64": "x86_64"}


@dataclass(frozen=True)
class ZigTools(Toolchain):
    """zig as a C and C++ compiler for Linux with musl."""

    zig: Path
    architecture: str

    def variables(self, home: Path) -> dict[str, str]:
        """Writes four scripts that call zig."""
        folder = home / "tools"
        folder.mkdir(parents=True, exist_ok=True)
        # its own caches, of which one serves all builds: it holds the compiled C and C++ libraries
        cache = shlex.quote(str(home.parent / "zig"))
        for name, arguments in _ZIG_TOOLS.items():
            call = arguments.format(target=f"{self.architecture}-linux-musl")
            text = (
                "#!/bin/sh\n"
                f"ZIG_GLOBAL_CACHE_DIR={cache} ZIG_LOCAL_CACHE_DIR={cache}\n"
                "export ZIG_GLOBAL_CACHE_DIR ZIG_LOCAL_CACHE_DIR\n"
                f'exec {shlex.quote(str(self.zig))} {call} "$@"\n'
            )
            (folder / name).write_text(text, encoding="utf-8")
            (folder / name).chmod(0o755)
        return {
            "CMAKE_SYSTEM_NAME": "Linux",
            "CMAKE_SYSTEM_PROCESSOR": self.architecture,
            "CMAKE_C_COMPILER": str(folder / "cc"),
            "CMAKE_CXX_COMPILER": str(folder / "c++"),
            "CMAKE_AR": str(folder / "ar"),
            "CMAKE_RANLIB": str(folder / "ranlib"),
            # what CMake tries at first is compiled like the rest, see _ZIG_FLAGS
            "CMAKE_TRY_COMPILE_CONFIGURATION": "Release",
            "MOE_ZIG": "ON",
        }


@dataclass(frozen=True)
class NdkTools(Toolchain):
    """Android's NDK, through the toolchain file that it brings along."""

    ndk: Path
    architecture: str

    def variables(self, home: Path) -> dict[str, str]:
        """Nothing is written."""
        return {
            "CMAKE_TOOLCHAIN_FILE": str(_toolchain_file(self.ndk)),
            "ANDROID_ABI": _ABIS[self.architecture],
            "ANDROID_PLATFORM": ANDROID_PLATFORM,
            "ANDROID_STL": "c++_static",
        }


def find_zig(machine: TargetMachine) -> ZigTools:
    """zig of the Python package `ziglang`. UsageError, with what to install, when it is missing."""
    spec = importlib.util.find_spec("ziglang")
    folders = (spec.submodule_search_locations or []) if spec is not None else []
    found = [Path(folder) / "zig" for folder in folders if os.access(Path(folder) / "zig", os.X_OK)]
    if not found:
        raise UsageError(NO_ZIG)
    try:
        done = subprocess.run(
            [found[0], "version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as e:
        raise UsageError(f"build.toolchain: {found[0]} does not run ({e}); install it anew") from e
    identity = "\n".join([f"zig {done.stdout.strip()}", *flag_variables()])
    tools = find_tool("cmake"), find_tool("ninja"), identity
    return ZigTools(*tools, found[0].absolute(), machine.architecture)


def find_ndk(machine: TargetMachine, ndk_dir: Path | None) -> NdkTools:
    """The NDK in `ndk_dir` or $ANDROID_NDK_HOME. UsageError when there is none to be used."""
    asked = os.environ.get(NDK_VARIABLE, "").strip()
    if ndk_dir is not None:
        key, ndk = "build.ndk_dir", ndk_dir.expanduser().absolute()
    elif asked:
        key, ndk = NDK_VARIABLE, Path(asked).expanduser().absolute()
    else:
        raise UsageError(
            f"build.toolchain: ndk needs Android's NDK; set build.ndk_dir=DIR or {NDK_VARIABLE}, "
            "or use build.toolchain=zig, which needs none"
        )
    if not machine.android:
        raise UsageError(
            "build.toolchain: ndk builds for Android, which the target is not; "
            "use build.toolchain=zig"
        )
    if not _toolchain_file(ndk).is_file():
        raise UsageError(f"{key}: {ndk} is no Android NDK (no {_toolchain_file(Path())})")
    identity = "\n".join([f"ndk {_ndk_revision(ndk)} {ANDROID_PLATFORM}", *flag_variables()])
    tools = find_tool("cmake"), find_tool("ninja"), identity
    return NdkTools(*tools, ndk, machine.architecture)


def _toolchain_file(ndk: Path) -> Path:
    return ndk / "build" / "cmake" / "android.toolchain.cmake"


def _ndk_revision(ndk: Path) -> str:
    """What source.properties says, as it identifies the compilers."""
    try:
        lines = (ndk / "source.properties").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"of unknown revision in {ndk}"
    return " ".join(lines.split())
