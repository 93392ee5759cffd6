"""`sync:`: files between host and device, and what they are."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from .connection import Connection
from .faults import Behaviour, Ending
from .streams import ByteReader, Stream, StreamClosedError

_HEAD = struct.Struct("<4sI")
_STAT = struct.Struct("<4sIII")
_STAT_2 = struct.Struct("<4sIQQIIIIQqqq")
_ENTRY = struct.Struct("<4sIIII")
_ENTRY_2 = struct.Struct("<4sIQQIIIIQqqqI")
_PIECE = 1 << 16
_LONGEST_PATH = 1024
_WORD = 0xFFFFFFFF


class SyncSession:
    def __init__(self, stream: Stream, behaviour: Behaviour, connection: Connection) -> None:
        self._stream = stream
        self._reader = ByteReader(stream)
        self._behaviour = behaviour
        self._connection = connection
        self._changed = 0  # when the host's file was, as the last DONE said

    def run(self) -> None:
        """Until the host ends it."""
        answers: dict[bytes, Callable[[str], None]] = {
            b"STAT": self._stat,
            b"STA2": lambda path: self._stat_2(b"STA2", path, os.stat),
            b"LST2": lambda path: self._stat_2(b"LST2", path, os.lstat),
            b"LIST": self._list,
            b"LIS2": self._list_2,
            b"SEND": self._take_file,
            b"RECV": self._give_file,
        }
        while True:
            request, size = _HEAD.unpack(self._reader.take(_HEAD.size))
            if request == b"QUIT":
                return
            if request not in answers or size > _LONGEST_PATH:
                self._fail(f"unknown or too long request {request!r}")
                return
            path = self._reader.take(size).decode("utf-8", "surrogateescape")
            answers[request](path)

    def _fail(self, reason: str) -> None:
        text = reason.encode("utf-8", "surrogateescape")
        self._stream.write(_HEAD.pack(b"FAIL", len(text)) + text)

    def _fail_with(self, doing: str, error: OSError) -> None:
        self._fail(f"{doing}: {os.strerror(error.errno or errno.EIO)}")

    # what is there

    def _stat(self, path: str) -> None:
        mode = size = changed = 0
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            mode, size, changed = found.st_mode, found.st_size & _WORD, int(found.st_mtime) & _WORD
        self._stream.write(_STAT.pack(b"STAT", mode, size, changed))

    def _stat_2(self, request: bytes, path: str, ask: Callable[[str], os.stat_result]) -> None:
        try:
            fields = _stat_fields(ask(path))
        except OSError as e:
            fields = (e.errno or errno.EIO, *[0] * 10)
        self._stream.write(_STAT_2.pack(request, *fields))

    def _list(self, path: str) -> None:
        answer = bytearray()
        for name, found in _entries(path):
            words = (found.st_mode, found.st_size & _WORD, int(found.st_mtime) & _WORD)
            answer += _ENTRY.pack(b"DENT", *words, len(name)) + name
        self._stream.write(bytes(answer) + _ENTRY.pack(b"DONE", 0, 0, 0, 0))

    def _list_2(self, path: str) -> None:
        answer = bytearray()
        for name, found in _entries(path):
            answer += _ENTRY_2.pack(b"DNT2", *_stat_fields(found), len(name)) + name
        self._stream.write(bytes(answer) + _ENTRY_2.pack(b"DONE", *[0] * 12))

    # to the device

    def _take_file(self, request: str) -> None:
        path, _, text = request.rpartition(",")
        try:
            mode = int(text, 0)
        except ValueError:
            self._fail("no mode in the request")
            return
        try:
            if stat.S_ISLNK(mode):
                self._take_link(path)
                return
            file = _create(path, mode & 0o777)
        except OSError as e:
            self._fail_with("couldn't create file", e)
            self._skip_file()
            return
        try:
            changed = self._write_file(file, path)
        except OSError as e:
            with contextlib.suppress(OSError):
                Path(path).unlink()
            self._fail_with("write failed", e)
            self._skip_file()
            return
        os.utime(path, (changed, changed))
        self._stream.write(_HEAD.pack(b"OKAY", 0))

    def _take_link(self, path: str) -> None:
        target = bytearray()
        while (piece := self._piece()) is not None:
            target += piece
        with contextlib.suppress(FileNotFoundError):
            Path(path).unlink()
        Path(path).symlink_to(target.rstrip(b"\0").decode("utf-8", "surrogateescape"))
        self._stream.write(_HEAD.pack(b"OKAY", 0))

    def _write_file(self, file: BinaryIO, path: str) -> int:
        """Returns when the host says it was changed last. Raises OSError."""
        taken = 0
        with file:
            while (piece := self._piece()) is not None:
                if self._behaviour.write_fails_now(path):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                _write_all(file, piece)
                taken += len(piece)
                if ending := self._behaviour.cut_after("send", taken):
                    self._end(ending)
        return self._changed

    def _piece(self) -> bytes | None:
        """None after the last one."""
        kind, size = _HEAD.unpack(self._reader.take(_HEAD.size))
        if kind == b"DATA" and size <= _PIECE:
            return self._reader.take(size)
        if kind != b"DONE":
            raise StreamClosedError
        self._changed = size
        return None

    def _skip_file(self) -> None:
        """The host sends on until it has seen that this one failed."""
        while self._piece() is not None:
            pass

    # from the device

    def _give_file(self, path: str) -> None:
        try:
            file = Path(path).open("rb", buffering=0)  # noqa: SIM115 - closed below
        except OSError as e:
            self._fail_with("open failed", e)
            return
        given = 0
        with file:
            while True:
                try:
                    data = file.read(_PIECE * 8)
                except OSError as e:
                    self._fail_with("read failed", e)
                    return
                if not data:
                    break
                given += len(data)
                self._stream.write(_in_pieces(data))
                if ending := self._behaviour.cut_after("recv", given):
                    self._end(ending)
                    break
        self._stream.write(_HEAD.pack(b"DONE", 0))

    def _end(self, ending: Ending) -> None:
        """`short` needs nothing but to stop."""
        if ending == "reset":
            self._connection.reset()
            raise StreamClosedError
        if ending == "silent":
            self._connection.fall_silent()
        elif ending == "close_stream":
            raise StreamClosedError


def _in_pieces(data: bytes) -> bytes:
    starts = range(0, len(data), _PIECE)
    pieces = [data[start : start + _PIECE] for start in starts]
    return b"".join(_HEAD.pack(b"DATA", len(piece)) + piece for piece in pieces)


def _stat_fields(found: os.stat_result) -> tuple[int, ...]:
    return (
        0,
        found.st_dev,
        found.st_ino,
        found.st_mode,
        found.st_nlink,
        found.st_uid,
        found.st_gid,
        found.st_size,
        int(found.st_atime),
        int(found.st_mtime),
        int(found.st_ctime),
    )


def _entries(path: str) -> list[tuple[bytes, os.stat_result]]:
    """Nothing for what is no directory, as a device answers."""
    found = []
    with contextlib.suppress(OSError):
        for name in [".", "..", *os.listdir(path)]:  # noqa: PTH208 - names with no path before them
            with contextlib.suppress(OSError):
                found.append((os.fsencode(name), os.lstat(f"{path}/{name}")))
    return found


def _write_all(file: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _create(path: str, mode: int) -> BinaryIO:
    """A file that was there is replaced, not overwritten: a running program keeps its own."""
    target = Path(path)
    with contextlib.suppress(OSError):
        if stat.S_ISREG(target.lstat().st_mode) or target.is_symlink():
            target.unlink()
    target.parent.mkdir(parents=True, exist_ok=True)
    file = target.open("wb", buffering=0)
    # the owner's permissions are everybody's
    os.fchmod(file.fileno(), (mode | (mode >> 3 & 0o070) | (mode >> 6 & 0o007)) & 0o777)
    return file
