"""One shell command for a device, and what came back of it. Pure.

adb joins its arguments with blanks and gives the text to the device's shell, mksh, so every
argument is quoted here, once. The client's own exit code and words cannot be told from a program's
(both exit 1, both may write `error: closed`), so the shell writes a mark that no program can know
before and after the program, on both streams, the last ones with its exit status. A stream without
its last mark is one that broke off.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.errors import DeviceError
from harness.targets.link import Finished

# older daemons take 4 KB for the whole request
MAX_COMMAND_BYTES = 3000

# The program takes the place of a subshell, whose parent says on a stream apart which signal ended
# it: "Killed". Only this tells signal 9 from an exit with 137. mksh is silent for SIGINT and
# SIGPIPE. All of this is in the background of the first shell: that gets SIGHUP when the
# connection ends, and can act on it at once while it does nothing but wait. What it started shall
# not go on for nobody. (It leads the process group; what makes a session of its own is not in it.)
_FRAME = """trap 'kill -KILL -$$' HUP
exec 3>&1 4>&2 5<&0
{{
trap - HUP INT QUIT
echo '{mark}['; echo '{mark}['"$$" >&2
m=$( {{ (exec {words} <&5 >&3 2>&4 3>&- 4>&- 5<&-); echo "$?"; }} 2>&1 )
echo "{mark}:$m:{mark}]"; echo "{mark}:$m:{mark}]" >&2
}} &
exec 3>&- 4>&- 5<&-
wait"""


@dataclass(frozen=True)
class Command:
    """What the shell is given, and what is to stand before the program's standard input."""

    text: bytes
    prefix: bytes


def quoted(argv: Sequence[str]) -> str:
    """The arguments as words of a shell. Raises DeviceError for what no argument can hold."""
    if any("\0" in word for word in argv):
        raise DeviceError(f"an argument for {argv[0]} holds a NUL character")
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in argv)


def command(script: str) -> Command:
    """A script as the shell's command, or, where it is too long for adb, to be read from stdin."""
    text = script.encode("utf-8", "surrogateescape")
    if len(text) <= MAX_COMMAND_BYTES:
        return Command(text, b"")
    # -N reads so many bytes and no more; what follows is the program's
    return Command(f'IFS= read -r -N {len(text)} s; eval "$s"'.encode(), text)


def framed(argv: Sequence[str], mark: str) -> Command:
    """The command that runs a program between marks."""
    return command(_FRAME.format(mark=mark, words=quoted(argv)))


def bare(argv: Sequence[str]) -> Command:
    """The command that becomes a program, whose standard error is dropped."""
    return command(f"exec {quoted(argv)} 2>/dev/null")


def is_whole(stdout: bytes | bytearray, stderr: bytes | bytearray, mark: str) -> bool:
    """Have both streams come to their last mark?"""
    end = f":{mark}]\n".encode()
    return end in stdout[-len(end) - 200 :] and end in stderr[-len(end) - 200 :]


def shell_pid(stderr: bytes | bytearray, mark: str) -> int | None:
    """The process id of the shell, which leads a process group; None while it is not known."""
    found = re.search(rb"%s\[(\d+)\n" % mark.encode(), stderr)
    return int(found[1]) if found else None


def finished(stdout: bytes, stderr: bytes, mark: str) -> Finished | None:
    """What the program said and how it ended; None when a stream broke off.

    Raises DeviceError when the shell could not start it, for want of processes or memory.
    """
    out, err = _between(stdout, mark), _between(stderr, mark)
    if out is None or err is None:
        return None
    said, _, status = err[1].rpartition(b"\n")
    if not status.isdigit():
        words = err[1].decode(errors="replace").split()
        raise DeviceError(f"the device's shell starts no program: {' '.join(words)}")
    code = int(status)
    if code > 128 and said:
        code = 128 - code
    return Finished(code, out[0], err[0])


def outside(stderr: bytes, mark: str) -> str:
    """What the client itself wrote, before the program and, where that ended, after it."""
    before, started, rest = stderr.partition(f"{mark}[".encode())
    after = rest.rpartition(f":{mark}]\n".encode())[2] if f":{mark}]\n".encode() in rest else b""
    return (before + b"\n" + after if started else before).decode(errors="replace")


def _between(stream: bytes, mark: str) -> tuple[bytes, bytes] | None:
    """What stands between the first and the last mark, and what the last one says."""
    form = rb"%s\[\d*\n(.*)%s:(.*?):%s\]\n" % ((mark.encode(),) * 3)
    found = re.search(form, stream, re.DOTALL)
    return (found[1], found[2]) if found else None
