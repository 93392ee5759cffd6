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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.build.compile import explain_failure
from harness.build.host import BuildHost, RemoteTools, last_line, shell
from harness.build.source import BUILT_FROM, LlamaSource, tree_files
from harness.build.types import Reporter
from harness.cachedir import sha256_file
from harness.errors import DeviceError, HarnessError

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

# $1: the build's directory, $2: this attempt's name. Started twice, it runs once. It holds the
# device's lock $3, for which it waits $4 seconds: compiling would disturb whoever measures. It is
# made as the launcher makes it: a file of another user in /tmp cannot be opened to be made. It is
# asked at any moment: its number or code is there whole, or not, and the lock is free by the code.
_START = """
cd -- "$1" || exit 1
[ -e "pid-$2" ] && exit 0
setsid sh -c '
    echo $$ >"pid-$1.new"; mv "pid-$1.new" "pid-$1"
    exec 9>lock; flock 9
    rm -f build.log
    [ -e "$2" ] || (umask 0; set -C; : >"$2")
    if ! (: <"$2") 2>/dev/null; then
        echo unlocked >"code-$1.new"; mv "code-$1.new" "code-$1"; exit
    fi
    exec 8<"$2"
    if flock -n 8 || { [ "$3" != 0 ] && flock -w "$3" 8; }; then
        nice -n 19 sh ./build.sh >build.log 2>&1 </dev/null
        echo $? >"code-$1.new"
    else
        echo busy >"code-$1.new"
    fi
    exec 8<&-
    mv "code-$1.new" "code-$1"
' sh "$2" "$3" "$4" >/dev/null 2>&1 </dev/null &
for i in 1 2 3 4 5 6 7 8 9; do [ -e "pid-$2" ] && exit 0; sleep 1; done
exit 1
"""
# How it ended (exit code, `busy`, `unlocked`; `gone`: it did not say), or `runs`; the log's end.
_WATCH = """
cd -- "$1" || exit 1
if [ -e "code-$2" ]; then cat "code-$2"
elif kill -0 "$(cat "pid-$2")" 2>/dev/null; then echo runs
elif [ -e "code-$2" ]; then cat "code-$2"
else echo gone; fi
tail -c "$3" build.log 2>/dev/null
exit 0
"""


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
    found = shell(host, 'sha256sum -- "$1"', str(made), timeout_s=LONG_S).stdout.split()
    host.get(str(made), into)
    if not found or found[0].decode(errors="replace") != sha256_file(into):
        raise DeviceError(f"{host.name}: {made} does not arrive here as it is there")
    said = shell(host, '"$1" --version', str(made)).stdout.decode(errors="replace").splitlines()
    return said[0] if said else ""


# --- sources -------------------------------------------------------------------------------------


def _llama_there(build: RemoteBuild) -> PurePosixPath:
    """llama.cpp's tree, sent when it is not there, or not as it was sent."""
    assert build.llama is not None  # noqa: S101 - asked before
    host = build.tools.host
    place = host.home / "build" / f"llama-{build.llama.sha256[:24]}"
    check = f'cd -- "$1" && sha256sum -c {SUMS} >/dev/null 2>&1'
    if shell(host, check, str(place), timeout_s=LONG_S, may_fail=True).code != 0:
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
        shell(host, 'rm -f -- "$1"', str(build.place / "build.sh"))
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
        shell(host, 'mkdir -p -- "$1"', str(place.parent))
        host.put(archive, str(there))
        unpacked = shell(
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
        if shell(host, check, str(place), timeout_s=LONG_S, may_fail=True).code != 0:
            raise DeviceError(f"{host.name}: {place} cannot be made: {last_line(unpacked)}")


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
    """Run the script to its end; its exit code, or a word for why it has none."""
    host, attempt = build.tools.host, secrets.token_hex(8)
    arguments = (str(build.place), attempt)
    try:
        shell(host, _START, *arguments, host.device_lock, str(host.wait_s))
        while True:
            said = shell(host, _WATCH, *arguments, str(LOOK_BYTES)).stdout
            state, _, text = said.decode(errors="replace").partition("\n")
            if state != "runs":
                return state
            _tell(text, host.name, report)
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        # by itself it would go on to the end
        with contextlib.suppress(HarnessError):
            shell(host, 'cd -- "$1" && kill -- "-$(cat "pid-$2")"', *arguments, may_fail=True)
        raise
    finally:
        with contextlib.suppress(HarnessError):
            shell(host, 'cd -- "$1" && rm -f -- "pid-$2" "code-$2"', *arguments, may_fail=True)


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
    if log:
        report("configure", f"configuring on {name}")
    else:
        report("wait", f"waiting for {name}, where a campaign measures or something is compiled")


def _keep_log(build: RemoteBuild, log: Path) -> None:
    done = shell(
        build.tools.host,
        'tail -c "$2" -- "$1"',
        *(str(build.place / "build.log"), str(LOG_BYTES)),
        may_fail=True,
    )
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(done.stdout)


def _explain(build: RemoteBuild, code: str, log: Path) -> None:
    host = build.tools.host
    if code == "busy":
        raise DeviceError(
            f"{host.name}: a campaign measures there, so nothing is compiled; wait for its end "
            "(session.wait_for_device_s), or use build.toolchain=zig, which compiles here"
        )
    if code == "unlocked":
        raise DeviceError(
            f"{host.name}: {host.device_lock} cannot be opened there; another file for all who "
            "use the device: target.device_lock=PATH"
        )
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
