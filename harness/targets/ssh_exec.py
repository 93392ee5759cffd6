"""Programs on a machine over a connection: from their arguments to how they ended. Touches the
connection.

What is sent is one line for the login shell. Each argument is quoted once, and a mark before the
program's own output tells it from what the shell's startup files print.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import time
from collections.abc import Callable, Sequence

import paramiko

from harness.errors import DeviceError
from harness.targets.link import Finished, LinkLost
from harness.targets.ssh_wire import Connection, Question

PIECE = 1 << 18
MOST_PIECES = 64
# of the one argument of the kernel's that the whole line becomes
LONGEST_LINE = 120_000
# how long it must be quiet after a program that left something behind with its output open
STRAGGLERS_S = 1.0
# how long a closed channel may be the first that is seen of a lost connection
VERDICT_S = 1.0
NEEDS_QUOTES = re.compile(rb"[^A-Za-z0-9@%+=:,./_-]")
START = 'echo "$0" $$; echo "$0" >&2; exec "$@"'
START_WITHOUT_STDERR = 'echo "$0" $$; exec "$@" 2>/dev/null'
# of all ways to write it the one that dash, busybox and the others understand
KILL = 'kill -9 -"$1" 2>/dev/null || kill -9 "$1"'
KILL_S = 10.0
OnOutput = Callable[[bytes], object]


def quoted(argument: str) -> bytes:
    """An argument for a shell. Raises DeviceError for what no argument can hold.

    Not `shlex.quote`: fish takes a backslash within single quotes for an escape. This is read
    alike by all shells but csh.
    """
    try:
        data = os.fsencode(argument)
    except UnicodeEncodeError as e:
        raise DeviceError(f"{argument!r} cannot be an argument: {e.reason}") from e
    if b"\0" in data:
        raise DeviceError(f"{argument!r} cannot be an argument: it holds a NUL character")
    if data and not NEEDS_QUOTES.search(data):
        return data
    marks = {b"'": b'"\'"', b"\\": b'"\\\\"'}
    parts = [part for part in re.split(rb"(['\\])", data) if part]
    return b"".join(marks.get(part) or b"'" + part + b"'" for part in parts) or b"''"


class _Marked:
    """A stream whose beginning, up to a line with a mark, is not the program's."""

    def __init__(self, mark: str | None) -> None:
        self._mark = None if mark is None else re.compile(rb"%b(?: ([0-9]+))?\n" % mark.encode())
        self.before = b""
        self.pid: int | None = None

    @property
    def began(self) -> bool:
        return self._mark is None

    def own(self, data: bytes) -> bytes:
        """What of new data is the program's."""
        if self._mark is None:
            return data
        self.before += data
        found = self._mark.search(self.before)
        if found is None:
            return b""
        rest = self.before[found.end() :]
        self.before, self._mark = self.before[: found.start()], None
        self.pid = int(found[1]) if found[1] else None
        return rest


class Program:
    """A program that runs over there."""

    def __init__(
        self, connection: Connection, argv: Sequence[str], *, with_stderr: bool = True
    ) -> None:
        """Start it. Raises LinkLost, or DeviceError when the machine does not start programs."""
        self._connection = connection
        self._name = argv[0]
        mark = secrets.token_hex(16)
        # by a shell that we know, whose process the program becomes; the login shell may be another
        start = START if with_stderr else START_WITHOUT_STDERR
        line = b" ".join([b"exec sh -c", b"'%b'" % start.encode(), *map(quoted, [mark, *argv])])
        if len(line) > LONGEST_LINE:
            raise DeviceError(
                f"the command line of {argv[0]} is too long for a login shell ({len(line)} bytes); "
                "give its arguments in a file"
            )
        self._out, self._err = _Marked(mark), _Marked(mark if with_stderr else None)
        self._quiet: tuple[float, Question] | None = None
        self._channel = self._start(line)

    def _start(self, line: bytes) -> paramiko.Channel:
        hop = self._connection.hop
        with self._connection.noticing():
            try:
                channel = self._connection.transport.open_session(timeout=hop.timeout_s)
            except paramiko.ChannelException as e:
                raise DeviceError(f"{hop.address}: starts no program ({e.args[-1]})") from e
            try:
                channel.exec_command(line)
            except paramiko.SSHException as e:
                if self._connection.gone_within(VERDICT_S):
                    raise
                raise DeviceError(f"{hop.address}: starts no program ({e})") from e
        channel.settimeout(0.0)
        return channel

    def pump(self, on_stdout: OnOutput, on_stderr: OnOutput) -> bool:
        """Hand on what came, without waiting; did anything?"""
        came = False
        if self._channel.recv_ready():
            came = True
            if own := self._out.own(self._channel.recv(PIECE)):
                on_stdout(own)
        if self._channel.recv_stderr_ready():
            came = True
            if own := self._err.own(self._channel.recv_stderr(PIECE)):
                on_stderr(own)
        if came:
            self._quiet = None
        return came

    def feed(self, data: memoryview) -> int:
        """Bytes of `data` that its standard input took, without waiting."""
        if self._channel.closed:
            return len(data)  # it has ended, and wants no more
        if not self._channel.send_ready():
            return 0
        try:
            return self._channel.send(data[:PIECE].tobytes()) or 0
        except TimeoutError:
            return 0
        except OSError:
            if self._channel.closed:
                return len(data)
            raise

    def end_of_input(self) -> None:
        self._channel.shutdown_write()

    def ended(self) -> bool:
        """Has it ended, and has all been handed on that it had to say?"""
        # in this order: what comes after the second look comes after the end
        return self._said_all() and not (
            self._channel.recv_ready() or self._channel.recv_stderr_ready()
        )

    def _said_all(self) -> bool:
        if self._channel.closed:
            return True
        if self._connection.transport.exit_code(self._channel) is None:
            return False
        if self._channel.eof_received:
            return True
        # What it said may still be on the way behind the news of its end. Nothing is any more once
        # an answer came and nothing else before it.
        if self._quiet is None:
            self._quiet = time.monotonic(), self._connection.ask()
        since, question = self._quiet
        return question.answered() and time.monotonic() - since > STRAGGLERS_S

    def wait(self, seconds: float) -> None:
        """Wait until something may have come, or so long."""
        if self._channel.eof_received or self._channel.closed:
            time.sleep(min(seconds, 0.002))  # its descriptor stays ready from now on
            return
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        poll.poll(max(1, int(seconds * 1000)))

    def code(self) -> int:
        """How it ended. Raises LinkLost when the connection did first, DeviceError when the login
        shell did not even begin with it."""
        code = self._connection.transport.exit_code(self._channel)
        if code is None and self._connection.gone_within(VERDICT_S):
            raise self._connection.lost()
        if not (self._out.began and self._err.began):
            said = (self._out.before + self._err.before).decode("utf-8", "replace").strip()
            how = "" if code is None else f" (exit code {code})"
            hop = self._connection.hop
            raise DeviceError(
                f"{hop.address}: the login shell of {hop.user} did "
                f"not run {self._name}{how}: {' '.join(said.split())[:200] or 'it says nothing'}"
            )
        if code is None:
            raise self._connection.lost(f"it did not say how {self._name} ended")
        return code

    def kill(self) -> None:
        """End it and what is in its process group. Raises LinkLost when the machine does not
        answer to that."""
        pid = self._out.pid
        if pid is None:
            return
        killer = Program(self._connection, ["sh", "-c", KILL, "sh", str(pid)])
        until = time.monotonic() + KILL_S
        try:
            while killer.pump(len, len) or not killer.ended():
                if time.monotonic() > until:
                    raise self._connection.lost(f"it does not even end {self._name}")
                killer.wait(0.1)
            killer.code()
        finally:
            killer.let_go()

    def let_go(self) -> None:
        """Close its streams; never raises."""
        with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
            self._channel.close()


def run_to_end(
    connection: Connection,
    argv: Sequence[str],
    *,
    timeout_s: float,
    stdin: bytes = b"",
) -> Finished:
    """Run a program and collect all it says. Raises LinkLost and DeviceError."""
    out, err = bytearray(), bytearray()
    code = stream(
        connection, argv, timeout_s=timeout_s, stdin=stdin, out=out.extend, err=err.extend
    )
    return Finished(code, bytes(out), bytes(err))


def stream(
    connection: Connection,
    argv: Sequence[str],
    *,
    timeout_s: float | None,
    out: OnOutput,
    err: OnOutput,
    stdin: bytes = b"",
) -> int:
    """Run a program to its end, handing on what it says as it comes; its exit code."""
    until = None if timeout_s is None else time.monotonic() + timeout_s
    program = Program(connection, argv)
    left = memoryview(stdin)
    try:
        with connection.noticing():
            if not left:
                program.end_of_input()
            while True:
                moved = program.pump(out, err)
                if left and (taken := program.feed(left)):
                    moved = True
                    left = left[taken:]
                    if not left:
                        program.end_of_input()
                if not moved and program.ended():
                    return program.code()
                if until is not None and time.monotonic() > until:
                    program.kill()
                    raise DeviceError(
                        f"{argv[0]} on {connection.hop.address} did not end within {timeout_s:g} s"
                    )
                if not moved:
                    program.wait(0.01 if left else 0.1)
    finally:
        program.let_go()


class Lines:
    """A program whose lines are read as they come: `Channel`."""

    def __init__(self, connection: Connection, argv: Sequence[str]) -> None:
        """Start it. Raises LinkLost and DeviceError."""
        self._connection = connection
        self._program = Program(connection, argv, with_stderr=False)
        self._name = argv[0]
        self._rest = bytearray()

    def send(self, line: bytes) -> None:
        """Write one line; waits while the program takes nothing more."""
        left = memoryview(line + b"\n")
        with self._connection.noticing():
            while left:
                if self._program.ended():
                    raise self._over()
                left = left[self._program.feed(left) :]
                if left:
                    self._program.wait(0.01)
            if not self._connection.alive():
                raise self._connection.lost()

    def lines(self) -> list[bytes]:
        """Whole lines that came since; LinkLost, from then on, once there will be no more."""
        # what came before the end is still there after it
        for _ in range(MOST_PIECES):
            if not self._program.pump(self._rest.extend, lambda _: None):
                break
        *whole, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        if not whole and self._program.ended():
            raise self._over()
        return whole

    def _over(self) -> Exception:
        code = self._program.code()  # may raise by itself
        return LinkLost(f"{self._name} on {self._connection.hop.address} has ended ({code})")

    def close(self) -> None:
        """Close its standard input and let it go; never raises."""
        self._program.let_go()
