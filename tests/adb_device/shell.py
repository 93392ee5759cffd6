"""Programs on the device for the host: `shell:` in both protocols, and `exec:`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import socket
import struct
import subprocess
import termios
import threading
from typing import NamedTuple

from .streams import ByteReader, Stream, StreamClosedError

SHELL = "/system/bin/sh"
_STDIN, _STDOUT, _STDERR, _EXIT, _CLOSE_STDIN, _WINDOW_SIZE = range(6)
_PACKET = struct.Struct("<BI")
_CHUNK = 1 << 16
ENVIRONMENT = {
    "PATH": "/product/bin:/system/bin:/system/xbin:/vendor/bin",
    "HOME": "/",
    "TMPDIR": "/data/local/tmp",
    "SHELL": "/bin/sh",
    "USER": "shell",
    "LOGNAME": "shell",
    "HOSTNAME": "localhost",
    "ANDROID_DATA": "/data",
    "ANDROID_ROOT": "/system",
}


class Request(NamedTuple):
    command: str
    version_2: bool
    terminal: bool
    variables: dict[str, str]


def parse_request(service: str) -> Request:
    """What follows `shell`: `,v2,TERM=xterm,raw:command`; an empty command is a terminal."""
    options, _, command = service.partition(":")
    words = options.split(",")[1:]
    terminal = not command
    if "pty" in words:
        terminal = True
    if "raw" in words:
        terminal = False
    given = dict(word.split("=", 1) for word in words if "=" in word)
    return Request(command, "v2" in words, terminal, given)


def run_shell(stream: Stream, request: Request) -> None:
    argv = [SHELL, "-c", request.command] if request.command else [SHELL, "-"]
    environment = ENVIRONMENT | request.variables
    if request.terminal:
        _in_terminal(stream, argv, environment, request.version_2)
    elif request.version_2:
        _with_packets(stream, argv, environment)
    else:
        run_plain(stream, argv, environment)


def run_exec(stream: Stream, command: str) -> None:
    run_plain(stream, [SHELL, "-c", command], ENVIRONMENT)


def run_plain(stream: Stream, argv: list[str], environment: dict[str, str]) -> None:
    """One socket is the program's input and output. Nobody is told how it ended, and a program
    whose host is gone finds that out by itself."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = _start(argv, environment, theirs, theirs, theirs)
        threading.Thread(target=process.wait, daemon=True).start()
        feeder = threading.Thread(target=_feed_plain, args=(stream, ours.fileno()), daemon=True)
        feeder.start()
        with contextlib.suppress(OSError):
            while data := ours.recv(_CHUNK):
                stream.write(data)
        stream.close()
        feeder.join()


def _feed_plain(stream: Stream, program: int) -> None:
    """Until the stream ends; then the program's output is not taken any more, either."""
    with contextlib.suppress(OSError):
        while data := stream.read():
            _write_all(program, data)
    with contextlib.suppress(OSError):
        sock = socket.socket(fileno=os.dup(program))
        sock.shutdown(socket.SHUT_RDWR)
        sock.close()


def _with_packets(stream: Stream, argv: list[str], environment: dict[str, str]) -> None:
    """As adbd does it: one socket for input and output, another for errors."""
    ours, theirs = socket.socketpair()
    our_errors, their_errors = socket.socketpair()
    with ours, our_errors:
        with theirs, their_errors:
            process = _start(argv, environment, theirs, theirs, their_errors)
        feeder = threading.Thread(target=_feed_packets, args=(stream, ours, process), daemon=True)
        feeder.start()
        errors = threading.Thread(
            target=_send_packets, args=(stream, _STDERR, our_errors.fileno()), daemon=True
        )
        errors.start()
        _send_packets(stream, _STDOUT, ours.fileno())
        errors.join()
    _say_exit(stream, process, feeder)


def _in_terminal(
    stream: Stream, argv: list[str], environment: dict[str, str], version_2: bool
) -> None:
    ours, theirs = pty.openpty()
    # toybox's setsid makes the terminal the controlling one of the new session
    with_terminal = ["/system/bin/toybox", "setsid", "-c", *argv]
    process = subprocess.Popen(
        with_terminal, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd="/"
    )
    os.close(theirs)
    if not version_2:
        feeder = threading.Thread(target=_feed_plain, args=(stream, ours), daemon=True)
        feeder.start()
        with contextlib.suppress(OSError, StreamClosedError):
            while data := os.read(ours, _CHUNK):
                stream.write(data)
        os.close(ours)
        stream.close()
        process.wait()
        return
    feeder = threading.Thread(target=_feed_packets, args=(stream, ours, process), daemon=True)
    feeder.start()
    _send_packets(stream, _STDOUT, ours)
    os.close(ours)
    _say_exit(stream, process, feeder)


def _start(
    argv: list[str],
    environment: dict[str, str],
    stdin: socket.socket,
    stdout: socket.socket,
    stderr: socket.socket,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        stdin=stdin.fileno(),
        stdout=stdout.fileno(),
        stderr=stderr.fileno(),
        env=environment,
        cwd="/",
        start_new_session=True,
    )


def _send_packets(stream: Stream, kind: int, program: int) -> None:
    with contextlib.suppress(OSError, StreamClosedError):
        while data := os.read(program, _CHUNK):
            stream.write(_PACKET.pack(kind, len(data)) + data)


def _feed_packets(
    stream: Stream, program: socket.socket | int, process: subprocess.Popen[bytes]
) -> None:
    """Packets of the host to the program. When the host is gone, the program is sent SIGHUP: it
    and not its children, as on a device."""
    packets = ByteReader(stream)
    try:
        while True:
            kind, size = _PACKET.unpack(packets.take(_PACKET.size))
            data = packets.take(size)
            with contextlib.suppress(OSError):
                _hand_over(kind, data, program)
    except StreamClosedError:
        if process.poll() is None:
            process.send_signal(signal.SIGHUP)
        if isinstance(program, socket.socket):
            with contextlib.suppress(OSError):
                program.shutdown(socket.SHUT_RDWR)


def _hand_over(kind: int, data: bytes, program: socket.socket | int) -> None:
    if kind == _STDIN:
        _write_all(program if isinstance(program, int) else program.fileno(), data)
    elif kind == _CLOSE_STDIN and isinstance(program, socket.socket):
        program.shutdown(socket.SHUT_WR)
    elif kind == _WINDOW_SIZE and isinstance(program, int):
        rows, columns = data.rstrip(b"\0").split(b",")[0].split(b"x")
        size = struct.pack("HHHH", int(rows), int(columns), 0, 0)
        fcntl.ioctl(program, termios.TIOCSWINSZ, size)


def _say_exit(stream: Stream, process: subprocess.Popen[bytes], feeder: threading.Thread) -> None:
    code = process.wait()
    # a signal's number from 128 on, as a shell says it
    status = code if code >= 0 else 128 - code
    stream.write(_PACKET.pack(_EXIT, 1) + bytes([status & 0xFF]))
    stream.close()
    feeder.join()


def _write_all(program: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(program, view) :]
