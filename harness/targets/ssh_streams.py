"""What carries a connection: a socket to a machine, or a command in its place; and when something
last came or went over it. Touches the network and that command.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import socket
import subprocess
import tempfile
import termios
from typing import IO, Protocol

from harness.targets.link import LinkLost
from harness.targets.ssh_hosts import Hop


class Stream(Protocol):
    """What paramiko needs of a socket; sockets and its own channels offer it."""

    def recv(self, size: int, /) -> bytes: ...
    def send(self, data: bytes, /) -> int: ...
    def settimeout(self, value: float | None, /) -> None: ...
    def close(self) -> None: ...
    def fileno(self) -> int: ...


class Heard:
    """A socket that knows when something last came, and reads more than is asked for at a time.

    paramiko reads each packet in three small pieces.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._ahead = memoryview(b"")
        self._sent = 0
        self.count = 0
        self._closed = False  # paramiko looks at it

    def recv(self, size: int) -> bytes:
        if not self._ahead:
            self._ahead = memoryview(self._stream.recv(max(size, 1 << 17)))
            self.count += 1
        piece, self._ahead = self._ahead[:size], self._ahead[size:]
        return piece.tobytes()

    def send(self, data: bytes) -> int:
        sent = self._stream.send(data)
        self._sent += sent
        return sent

    def arrived(self) -> int:
        """Bytes of what was sent that the other end has acknowledged, where the system tells."""
        waiting = array.array("i", [0])
        with contextlib.suppress(OSError, ValueError):
            fcntl.ioctl(self._stream.fileno(), termios.TIOCOUTQ, waiting)
        return self._sent - waiting[0]

    def settimeout(self, value: float | None) -> None:
        self._stream.settimeout(value)

    def close(self) -> None:
        """Never raises: paramiko's thread would end with that, and leave others waiting."""
        self._closed = True
        with contextlib.suppress(Exception):
            self._stream.close()


def connect(hop: Hop) -> socket.socket:
    family = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}.get(hop.family, 0)
    try:
        addresses = socket.getaddrinfo(hop.host, hop.port, family, socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as e:
        reason = e.strerror if isinstance(e, socket.gaierror) else str(e)
        raise LinkLost(f"cannot connect to {hop.address}: the name is not known ({reason})") from e
    failure: OSError = OSError(errno.EADDRNOTAVAIL, "no address")
    for kind, sort, protocol, _, address in addresses:
        stream = socket.socket(kind, sort, protocol)
        try:
            stream.settimeout(hop.connect_timeout_s)
            if hop.bind_address is not None:
                stream.bind((hop.bind_address, 0))
            stream.connect(address)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return stream
        except OSError as e:
            stream.close()
            failure = e
    raise failure


class Command:
    """A command that stands in for the network (ProxyCommand), by a pair of sockets."""

    def __init__(self, command: str) -> None:
        self.socket, theirs = socket.socketpair()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as we do
        # as ssh does it: what it says is the user's own configuration; no signal of our terminal
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=self._errors.fileno(),
            start_new_session=True,
        )
        theirs.close()

    def said(self) -> str:
        """The last line of its standard error."""
        with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
            self._process.wait(0.5)
        try:
            self._errors.seek(0)
            lines = self._errors.read().decode("utf-8", "replace").split("\n")
        except ValueError:  # closed
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        self.socket.close()
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._process.terminate()
            self._process.wait(1.0)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._errors.close()
