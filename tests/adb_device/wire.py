"""Messages of the adb transport over a socket: their bytes, and nothing of what they mean."""

from __future__ import annotations

import socket
import struct
import threading
from typing import NamedTuple

SYNC, CNXN, OPEN, OKAY, WRTE, CLSE, AUTH = (
    int.from_bytes(name, "little")
    for name in (b"SYNC", b"CNXN", b"OPEN", b"OKAY", b"WRTE", b"CLSE", b"AUTH")
)
VERSION_WITH_CHECKSUMS = 0x01000000
VERSION_WITHOUT = 0x01000001
# before it is known what the other side takes
LEAST_PAYLOAD = 4096
MAX_PAYLOAD = 1 << 20

_HEADER = struct.Struct("<6I")


class WireError(Exception):
    """What came is no message of this protocol."""


class Message(NamedTuple):
    command: int
    arg0: int
    arg1: int
    data: bytes = b""

    def __str__(self) -> str:
        name = self.command.to_bytes(4, "little").decode("latin-1")
        return f"{name} {self.arg0:#x} {self.arg1:#x} {len(self.data)}"


def receive_exactly(sock: socket.socket, size: int) -> bytes:
    """Raises ConnectionError when the other side ends before."""
    buffer = bytearray(size)
    view = memoryview(buffer)
    filled = 0
    while filled < size:
        got = sock.recv_into(view[filled:])
        if got == 0:
            raise ConnectionResetError("the host closed the connection")
        filled += got
    return bytes(buffer)


class Wire:
    """One connection. Any thread may send; one receives."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.version = VERSION_WITH_CHECKSUMS
        self.max_payload = LEAST_PAYLOAD
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        data = message.data
        check = sum(data) & 0xFFFFFFFF if self.version < VERSION_WITHOUT else 0
        header = _HEADER.pack(
            message.command,
            message.arg0,
            message.arg1,
            len(data),
            check,
            message.command ^ 0xFFFFFFFF,
        )
        with self._sending:
            self.socket.sendall(header + data)

    def receive(self) -> Message:
        """Raises ConnectionError at its end, WireError on anything but a message."""
        command, arg0, arg1, size, check, magic = _HEADER.unpack(
            receive_exactly(self.socket, _HEADER.size)
        )
        if magic != command ^ 0xFFFFFFFF:
            raise WireError(f"magic {magic:#x} does not belong to command {command:#x}")
        if size > MAX_PAYLOAD:
            raise WireError(f"{size} bytes in one message")
        data = receive_exactly(self.socket, size)
        if self.version < VERSION_WITHOUT and command != CNXN and sum(data) & 0xFFFFFFFF != check:
            raise WireError("wrong checksum")
        return Message(command, arg0, arg1, data)
