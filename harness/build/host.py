"""A machine to compile on that is not this one: how it is reached, and which tools it has.

It is reached by functions that are handed in. They may ask it the same thing twice, when a
connection broke in between, so everything asked of it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from harness.build.toolchain import Toolchain
from harness.errors import DeviceError, UsageError

SHORT_S = 60.0

# prints `NAME PATH` for each tool that is there, then what identifies the compilers
_LOOK = """
first() {
    what=$1; shift
    for one in "$@"; do
        path=$(command -v "$one") && { echo "$what $path"; return; }
    done
}
first cxx g++ clang++ c++
first cc gcc clang cc
first cmake cmake
first ninja ninja ninja-build
first make make gmake
for one in tar sha256sum setsid flock nice nproc; do first "$one" "$one"; done
echo --
for one in "$(first cxx g++ clang++ c++)" "$(first cc gcc clang cc)"; do
    echo "$one"; ${one#* } --version 2>&1 | head -n 1
done
uname -m
"""


class Answer(Protocol):
    """What a program on the machine left."""

    @property
    def code(self) -> int:
        """Its exit code."""

    @property
    def stdout(self) -> bytes:
        """All of it."""

    @property
    def stderr(self) -> bytes:
        """All of it."""


class Call(Protocol):
    """Runs a short program on the machine, every argument as it is."""

    def __call__(self, argv: Sequence[str], *, timeout_s: float = SHORT_S) -> Answer:
        """Raises DeviceError when the machine stays away."""


@dataclass(frozen=True)
class BuildHost:
    """A machine to compile on, and how to reach it."""

    name: str
    home: PurePosixPath
    call: Call
    put: Callable[[Path, str], None]  # a file of this machine's to a path there
    get: Callable[[str, Path], None]
    device_lock: str  # held there by the campaign that measures
    wait_s: int  # so long for its end


@dataclass(frozen=True)
class RemoteTools(Toolchain):
    """The compilers of another machine; `ninja` is make where there is no ninja."""

    host: BuildHost
    cc: str
    cxx: str

    def variables(self, home: Path) -> dict[str, str]:
        """Nothing is written."""
        return {"CMAKE_C_COMPILER": self.cc, "CMAKE_CXX_COMPILER": self.cxx}


def find_there(host: BuildHost) -> RemoteTools:
    """The tools of `host`. UsageError, one line, names all that is missing."""
    said = shell(host, _LOOK).stdout.decode(errors="replace")
    tools_text, _, identity = said.partition("--\n")
    pairs = (line.partition(" ") for line in tools_text.splitlines())
    tools = {name: path for name, _, path in pairs}
    missing = [word for name, word in _NEEDED.items() if name not in tools]
    if "ninja" not in tools and "make" not in tools:
        missing.append("make")
    if missing:
        raise UsageError(
            f"build.toolchain: host compiles on {host.name}, which lacks {', '.join(missing)}; "
            f"install that there (Debian: apt-get install g++ cmake make), "
            "or use build.toolchain=zig, which compiles here"
        )
    made_by = Path(tools.get("ninja") or tools["make"])
    identity = f"{made_by.name}\n{identity.strip()}"
    return RemoteTools(Path(tools["cmake"]), made_by, identity, host, tools["cc"], tools["cxx"])


_NEEDED = {"cxx": "g++", "cc": "gcc", "cmake": "cmake"} | {
    name: name for name in ("tar", "sha256sum", "setsid", "flock", "nice", "nproc")
}


def shell(
    host: BuildHost,
    script: str,
    *arguments: str,
    timeout_s: float = SHORT_S,
    may_fail: bool = False,
) -> Answer:
    """Run a script of the POSIX shell there. Raises DeviceError when it fails, unless it may."""
    done = host.call(["sh", "-c", script, "sh", *arguments], timeout_s=timeout_s)
    if done.code != 0 and not may_fail:
        raise DeviceError(f"{host.name}: compiling there: {last_line(done)}")
    return done


def last_line(done: Answer) -> str:
    """What a failed program said last."""
    text = (done.stderr or done.stdout).decode(errors="replace").strip()
    return text.splitlines()[-1] if text else f"exit code {done.code}"
