"""Compiling on the target itself, where that has a compiler: sources there, executable back.

Everything asked of the machine may be asked twice, since a connection that broke in between makes
the caller ask again. The compilation itself runs there by itself, with the lowest priority, and is
watched from here. Below `home` on it: `build/llama-<hash>/`, and a directory for each build that
keeps its objects.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import secrets
import shlex
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from harness.build.compile import explain_failure
from harness.build.source import BUILT_FROM, LlamaSource, tree_files
from harness.build.toolchain import Toolchain
from harness.build.types import Reporter
from harness.cachedir import sha256_file
from harness.errors import DeviceError, HarnessError, UsageError

SHORT_S = 60.0
# hashing and unpacking the sources on a slow card
LONG_S = 900.0
POLL_S = 1.0
# of the log, at each look
LOOK_BYTES = 4000
LOG_BYTES = 200_000
SUMS = "SHA256SUMS"
# ninja's and make's way to say how far they are
_COUNTED = re.compile(r"\[(\d+)/(\d+)\] (.*)")
_PERCENT = re.compile(r"\[ *(\d+)%\] (.*)")

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
# $1: the build's directory, $2: this attempt's name. Started twice, it runs once.
_START = """
cd -- "$1" || exit 1
[ -e "pid-$2" ] && exit 0
setsid sh -c '
    echo $$ >"pid-$1"
    exec 9>lock; flock 9
    nice -n 19 sh ./build.sh >build.log 2>&1 </dev/null
    echo $? >"code-$1.new"; mv "code-$1.new" "code-$1"
' sh "$2" >/dev/null 2>&1 </dev/null &
for i in 1 2 3 4 5 6 7 8 9; do [ -e "pid-$2" ] && exit 0; sleep 1; done
exit 1
"""
# The exit code when it has ended, `gone` when it ended without one, `runs`; then the log's end.
_WATCH = """
cd -- "$1" || exit 1
if [ -e "code-$2" ]; then cat "code-$2"
elif kill -0 "$(cat "pid-$2")" 2>/dev/null; then echo runs
elif [ -e "code-$2" ]; then cat "code-$2"
else echo gone; fi
tail -c "$3" build.log 2>/dev/null
exit 0
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
    said = _sh(host, _LOOK).stdout.decode(errors="replace")
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


@dataclass(frozen=True)
class RemoteBuild:
    """One executable to be compiled there."""

    tools: RemoteTools
    program: str
    workspace: str  # names the directory that keeps the objects
    origin: Path  # engine_src
    parts: tuple[str, ...]
    llama: LlamaSource | None
    variables: Mapping[str, str]

    @property
    def project(self) -> str:
        """The directory of our sources that holds the CMakeLists.txt."""
        return "launcher" if self.llama is None else "."

    @property
    def place(self) -> PurePosixPath:
        """The build's directory there."""
        return self.tools.host.home / "build" / self.workspace


def build_there(build: RemoteBuild, log: Path, into: Path, report: Reporter) -> str:
    """Compile; the executable comes to the file `into`, the whole log to `log`.

    Returns the first line that the executable answers to `--version` there. Raises DeviceError
    with the end of the log when it does not compile.
    """
    host = build.tools.host
    report("source", f"sending the sources to {host.name}")
    variables = {**build.tools.variables(Path()), **build.variables, "CMAKE_BUILD_TYPE": "Release"}
    if build.llama is not None:
        variables["MOE_LLAMA_DIR"] = str(_llama_there(build))
    _sources_there(build, variables)
    code = _compile(build, report)
    _keep_log(build, log)
    if code != "0":
        _explain(build, code, log)
    made = build.place / "out" / "bin" / build.program
    report("check", f"fetching {build.program} from {host.name}")
    found = _sh(host, 'sha256sum -- "$1"', str(made), timeout_s=LONG_S).stdout.split()
    host.get(str(made), into)
    if not found or found[0].decode(errors="replace") != sha256_file(into):
        raise DeviceError(f"{host.name}: {made} does not arrive here as it is there")
    said = _sh(host, '"$1" --version', str(made)).stdout.decode(errors="replace").splitlines()
    return said[0] if said else ""


# --- sources -------------------------------------------------------------------------------------


def _llama_there(build: RemoteBuild) -> PurePosixPath:
    """llama.cpp's tree, sent when it is not there, or not as it was sent."""
    assert build.llama is not None  # noqa: S101 - asked before
    host = build.tools.host
    place = host.home / "build" / f"llama-{build.llama.sha256[:24]}"
    check = f'cd -- "$1" && sha256sum -c {SUMS} >/dev/null 2>&1'
    if _sh(host, check, str(place), timeout_s=LONG_S, may_fail=True).code != 0:
        _unpack_there(host, build.llama.path, BUILT_FROM, place)
    return place


def _sources_there(build: RemoteBuild, variables: Mapping[str, str]) -> None:
    """Our own sources, and the script that compiles them."""
    host = build.tools.host
    _unpack_there(host, build.origin, build.parts, build.place / "src")
    script = _script(build, variables)
    with tempfile.NamedTemporaryFile(prefix="moe-build-", suffix=".sh") as file:
        file.write(script.encode())
        file.flush()
        _sh(host, 'rm -f -- "$1"', str(build.place / "build.sh"))
        host.put(Path(file.name), str(build.place / "build.sh"))


def _unpack_there(
    host: BuildHost, tree: Path, parts: tuple[str, ...], place: PurePosixPath
) -> None:
    """`parts` of `tree` become the directory `place`, whole and checked, with the times of now:
    what had been compiled from something else there is compiled again."""
    with tempfile.TemporaryDirectory(prefix="moe-sources-") as folder:
        archive = Path(folder, "sources.tar.gz")
        _pack(tree, parts, archive)
        sha256 = sha256_file(archive)
        there = place.parent / f"sources-{sha256[:24]}.tar.gz"
        _sh(host, 'mkdir -p -- "$1"', str(place.parent))
        host.put(archive, str(there))
        unpacked = _sh(
            host,
            'echo "$3  $1" | sha256sum -c >/dev/null || { rm -f -- "$1"; exit 3; }\n'
            'rm -rf -- "$2.new" && mkdir -- "$2.new" && tar -xzmf "$1" -C "$2.new" && '
            'rm -rf -- "$2" && mv -- "$2.new" "$2" && rm -f -- "$1"',
            *(str(there), str(place), sha256),
            timeout_s=LONG_S,
            may_fail=True,
        )
        if unpacked.code == 3:
            raise DeviceError(f"{host.name}: the sources do not arrive there as they were sent")
        # asked again after a break, the archive is gone and the tree is there
        check = f'cd -- "$1" && sha256sum -c {SUMS} >/dev/null'
        if _sh(host, check, str(place), timeout_s=LONG_S, may_fail=True).code != 0:
            raise DeviceError(f"{host.name}: {place} cannot be made: {_last_line(unpacked)}")


def _pack(tree: Path, parts: tuple[str, ...], archive: Path) -> None:
    """The same bytes for the same content; with a list of the hashes of all files."""
    sums = []

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        info.mode = 0o644
        return info

    with tarfile.open(archive, "w:gz", compresslevel=5) as tar:
        for file in tree_files(tree, parts):
            content = file.read_bytes()
            name = file.relative_to(tree).as_posix()
            sums.append(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
            info = plain(tarfile.TarInfo(name))
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        info = plain(tarfile.TarInfo(SUMS))
        text = "".join(sums).encode()
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))


def _script(build: RemoteBuild, variables: Mapping[str, str]) -> str:
    tools, out = build.tools, build.place / "out"
    generator = "Ninja" if tools.ninja.name.startswith("ninja") else "Unix Makefiles"
    configure = [
        *(str(tools.cmake), "-S", str(build.place / "src" / build.project), "-B", str(out)),
        *("-G", generator, f"-DCMAKE_MAKE_PROGRAM={tools.ninja}"),
        f"-DCMAKE_RUNTIME_OUTPUT_DIRECTORY={out / 'bin'}",
        *(f"-D{name}={value}" for name, value in sorted(variables.items())),
    ]
    make = [str(tools.cmake), "--build", str(out), "--target", build.program]
    # a file of llama.cpp takes up to 700 MiB to compile
    return f"""# written by moe-harness
set -e
unset CMAKE_GENERATOR CMAKE_TOOLCHAIN_FILE MAKEFLAGS DESTDIR CMAKE_BUILD_TYPE
unset CFLAGS CXXFLAGS CPPFLAGS LDFLAGS
export LC_ALL=C NINJA_STATUS='[%f/%t] '
{shlex.join(configure)}
jobs=$(nproc)
memory=$(awk '/^MemAvailable:/ {{print int($2 / 716800)}}' /proc/meminfo)
if [ -n "$memory" ] && [ "$memory" -lt "$jobs" ]; then jobs=$memory; fi
if [ "$jobs" -lt 1 ]; then jobs=1; fi
exec {shlex.join(make)} -j "$jobs"
"""


# --- compiling -----------------------------------------------------------------------------------


def _compile(build: RemoteBuild, report: Reporter) -> str:
    """Run the script to its end; its exit code, or `gone`."""
    host, attempt = build.tools.host, secrets.token_hex(8)
    arguments = (str(build.place), attempt)
    try:
        _sh(host, _START, *arguments)
        while True:
            said = _sh(host, _WATCH, *arguments, str(LOOK_BYTES)).stdout
            state, _, text = said.decode(errors="replace").partition("\n")
            if state != "runs":
                return state
            _tell(text, host.name, report)
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        # by itself it would go on to the end
        with contextlib.suppress(HarnessError):
            _sh(host, 'cd -- "$1" && kill -- "-$(cat "pid-$2")"', *arguments, may_fail=True)
        raise
    finally:
        with contextlib.suppress(HarnessError):
            _sh(host, 'cd -- "$1" && rm -f -- "pid-$2" "code-$2"', *arguments, may_fail=True)


def _tell(log: str, name: str, report: Reporter) -> None:
    """The last line of the log that says how far it is."""
    for line in reversed(log.splitlines()):
        if found := _COUNTED.fullmatch(line):
            what = found[3].rsplit("/", 1)[-1][:60]
            report("compile", f"{what} on {name}", int(found[1]), int(found[2]))
            return
        if found := _PERCENT.fullmatch(line):
            what = found[2].rsplit("/", 1)[-1][:60]
            report("compile", f"{what} on {name}", int(found[1]), 100)
            return
    report("configure", f"configuring on {name}")


def _keep_log(build: RemoteBuild, log: Path) -> None:
    done = _sh(
        build.tools.host,
        'tail -c "$2" -- "$1"',
        *(str(build.place / "build.log"), str(LOG_BYTES)),
        may_fail=True,
    )
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(done.stdout)


def _explain(build: RemoteBuild, code: str, log: Path) -> None:
    host = build.tools.host
    if code == "gone":
        raise DeviceError(
            f"compiling {build.program} on {host.name} ended without an exit code: it was killed, "
            f"or the machine restarted; run it again. Log: {log}"
        )
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    here = {str(build.place / "src"): str(build.origin)}
    space = f"in {build.place} on {host.name}; make room there"
    what = f"compiling {build.program} on {host.name}"
    raise DeviceError(explain_failure(what, lines, log, space, here))


def _sh(
    host: BuildHost,
    script: str,
    *arguments: str,
    timeout_s: float = SHORT_S,
    may_fail: bool = False,
) -> Answer:
    done = host.call(["sh", "-c", script, "sh", *arguments], timeout_s=timeout_s)
    if done.code != 0 and not may_fail:
        raise DeviceError(f"{host.name}: compiling there: {_last_line(done)}")
    return done


def _last_line(done: Answer) -> str:
    text = (done.stderr or done.stdout).decode(errors="replace").strip()
    return text.splitlines()[-1] if text else f"exit code {done.code}"
