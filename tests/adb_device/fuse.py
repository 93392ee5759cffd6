"""A file system of the kind that phones show their shared storage through: the kernel's FUSE
protocol, served from a directory. It does what files are commonly used for, and no more."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

from . import kernel

_REQUEST = struct.Struct("<IIQQIIIHH")
_REPLY = struct.Struct("<IiQ")
_ATTRIBUTES = struct.Struct("<6Q10I")
_ENTRY_HEAD = struct.Struct("<4QII")
_ROOT = 1
_SECONDS_VALID = 1
_MAX_WRITE = 1 << 17
_BUFFER = _MAX_WRITE + 4096
_PROTOCOL = (7, 31)
# SETATTR: which fields are meant
_SET_MODE, _SET_SIZE, _SET_ATIME, _SET_MTIME, _SET_ATIME_NOW, _SET_MTIME_NOW = (
    1,
    8,
    16,
    32,
    128,
    256,
)
_FORGET, _INTERRUPT, _BATCH_FORGET = 2, 36, 42


def has_fuse() -> bool:
    """Whether a device has shared storage here."""
    return os.access("/dev/fuse", os.R_OK | os.W_OK)


def mount_fuse(target: str, user: int) -> int:
    """Returns where its requests are read."""
    requests = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={requests},rootmode=40000,user_id={user},group_id={user},allow_other"
    kernel.mount("/dev/fuse", target, "fuse", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    return requests


class FuseServer:
    """Nodes are paths below `directory`; owner and permissions are the same for all of them."""

    def __init__(self, requests: int, directory: Path, owner: int) -> None:
        self._requests = requests
        self._owner = owner
        self._paths = {_ROOT: directory}
        self._numbers = {directory: _ROOT}
        self._calls: dict[int, Callable[[int, bytes], bytes]] = {
            1: self._look_up,
            3: lambda node, _: self._attributes_of(node),
            4: self._set_attributes,
            9: self._make_directory,
            10: lambda node, data: self._remove(node, data, Path.unlink),
            11: lambda node, data: self._remove(node, data, Path.rmdir),
            12: lambda node, data: self._rename(node, data, 8),
            14: self._open,
            15: self._read,
            16: self._write,
            17: self._space,
            18: self._release,
            20: self._synchronise,
            25: lambda _node, _data: b"",
            26: self._agree,
            27: lambda _node, _data: bytes(16),
            28: self._read_directory,
            29: lambda _node, _data: b"",
            35: self._create,
            45: lambda node, data: self._rename(node, data, 16),
        }

    def run(self) -> None:
        """Until the file system is unmounted."""
        while True:
            try:
                message = os.read(self._requests, _BUFFER)
            except OSError as e:
                if e.errno == errno.ENODEV:
                    return
                if e.errno in (errno.EINTR, errno.ENOENT):
                    continue
                raise
            _, operation, unique, node, *_ = _REQUEST.unpack_from(message)
            if operation in (_FORGET, _INTERRUPT, _BATCH_FORGET):
                continue
            failure, answer = 0, b""
            try:
                call = self._calls.get(operation)
                if call is None:
                    raise OSError(errno.ENOSYS, "not served")
                answer = call(node, message[_REQUEST.size :])
            except OSError as e:
                failure = -(e.errno or errno.EIO)
            with contextlib.suppress(OSError):  # the request may have been given up meanwhile
                os.write(
                    self._requests, _REPLY.pack(_REPLY.size + len(answer), failure, unique) + answer
                )

    def _agree(self, _node: int, data: bytes) -> bytes:
        _, _, read_ahead, _ = struct.unpack_from("<4I", data)
        return struct.pack(
            "<4IHHIIHHI7I", *_PROTOCOL, read_ahead, 0, 12, 9, _MAX_WRITE, 1, 0, 0, 0, *[0] * 7
        )

    # nodes

    def _number(self, path: Path) -> int:
        if path not in self._numbers:
            self._numbers[path] = number = len(self._paths) + 1
            self._paths[number] = path
        return self._numbers[path]

    def _attributes(self, path: Path) -> bytes:
        found = path.lstat()
        mode = stat.S_IFMT(found.st_mode) | (0o770 if stat.S_ISDIR(found.st_mode) else 0o660)
        times = [int(t) for t in (found.st_atime, found.st_mtime, found.st_ctime)]
        return _ATTRIBUTES.pack(
            self._number(path),
            found.st_size,
            found.st_blocks,
            *times,
            *(0, 0, 0),
            mode,
            found.st_nlink,
            self._owner,
            self._owner,
            *(0, 4096, 0),
        )

    def _entry(self, path: Path) -> bytes:
        attributes = self._attributes(path)
        head = (self._number(path), 0, _SECONDS_VALID, _SECONDS_VALID, 0, 0)
        return _ENTRY_HEAD.pack(*head) + attributes

    def _attributes_of(self, node: int) -> bytes:
        return struct.pack("<QII", _SECONDS_VALID, 0, 0) + self._attributes(self._paths[node])

    def _look_up(self, node: int, data: bytes) -> bytes:
        return self._entry(self._paths[node] / _name(data))

    def _set_attributes(self, node: int, data: bytes) -> bytes:
        valid, _, _, size, _, accessed, changed, _ = struct.unpack_from("<II6Q", data)
        path = self._paths[node]
        if valid & _SET_SIZE:
            os.truncate(path, size)
        if valid & (_SET_ATIME_NOW | _SET_MTIME_NOW):
            os.utime(path)
        elif valid & (_SET_ATIME | _SET_MTIME):
            os.utime(path, (accessed, changed))
        return self._attributes_of(node)

    # names

    def _make_directory(self, node: int, data: bytes) -> bytes:
        path = self._paths[node] / _name(data[8:])
        path.mkdir()
        return self._entry(path)

    def _remove(self, node: int, data: bytes, how: Callable[[Path], None]) -> bytes:
        path = self._paths[node] / _name(data)
        how(path)
        self._numbers.pop(path, None)  # a file of that name is another one from now on
        return b""

    def _rename(self, node: int, data: bytes, skip: int) -> bytes:
        (directory,) = struct.unpack_from("<Q", data)
        old, new, _ = data[skip:].split(b"\0", 2)
        source = self._paths[node] / os.fsdecode(old)
        target = self._paths[directory] / os.fsdecode(new)
        source.rename(target)
        for path, number in list(self._numbers.items()):
            if path.is_relative_to(source):
                del self._numbers[path]
                self._paths[number] = target / path.relative_to(source)
                self._numbers[self._paths[number]] = number
        return b""

    def _read_directory(self, node: int, data: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", data)
        path = self._paths[node]
        answer = b""
        for index, name in enumerate([".", "..", *sorted(p.name for p in path.iterdir())]):
            if index < offset:
                continue
            raw = os.fsencode(name)
            try:
                kind = stat.S_IFMT((path / name).lstat().st_mode) >> 12
            except OSError:
                continue
            entry = struct.pack("<QQII", index + 1, index + 1, len(raw), kind) + raw
            entry += bytes(-len(entry) % 8)
            if len(answer) + len(entry) > size:
                break
            answer += entry
        return answer

    # contents; direct or not, the bytes come through the directory's own page cache

    def _open(self, node: int, data: bytes) -> bytes:
        (flags,) = struct.unpack_from("<I", data)
        return struct.pack("<QII", os.open(self._paths[node], flags & ~os.O_DIRECT), 0, 0)

    def _create(self, node: int, data: bytes) -> bytes:
        flags, _, _, _ = struct.unpack_from("<4I", data)
        path = self._paths[node] / _name(data[16:])
        handle = os.open(path, flags & ~os.O_DIRECT | os.O_CREAT, 0o660)
        return self._entry(path) + struct.pack("<QII", handle, 0, 0)

    def _read(self, _node: int, data: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", data)
        return os.pread(handle, size, offset)

    def _write(self, _node: int, data: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", data)
        return struct.pack("<II", os.pwrite(handle, data[40 : 40 + size], offset), 0)

    def _synchronise(self, _node: int, data: bytes) -> bytes:
        os.fsync(struct.unpack_from("<Q", data)[0])
        return b""

    def _release(self, _node: int, data: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", data)[0])
        return b""

    def _space(self, _node: int, _data: bytes) -> bytes:
        found = os.statvfs(self._paths[_ROOT])
        return struct.pack(
            "<5Q10I",
            *(found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree),
            *(found.f_bsize, 255, found.f_frsize, *[0] * 7),
        )


def _name(data: bytes) -> str:
    return os.fsdecode(data.split(b"\0", 1)[0])
