"""The machine the harness itself runs on. Touches processes, files and the page cache.

Its methods are those that a remote target can offer too: paths name files on the target, `run`
starts a program that goes on by itself, and everything the program has to say is in its files.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import DeviceError
from harness.records import TargetId


@dataclass(frozen=True)
class PageCache:
    """Bytes of some files that were in the page cache before and after they were evicted.

    None: this system does not tell.
    """

    before_bytes: int | None
    after_bytes: int | None


class Running:
    """A program on the target, from its start to its end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """Made by `LocalTarget.run`."""
        self._process = process

    @property
    def pid(self) -> int:
        """Process id on the target."""
        return self._process.pid

    def poll(self) -> int | None:
        """Exit code (negative: the signal), or None while it runs."""
        return self._process.poll()

    def terminate(self) -> None:
        """Ask it to end (SIGTERM); does not wait."""
        self._process.terminate()

    def kill(self) -> None:
        """End it and whatever is left of its process group (SIGKILL), and wait for that."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class LocalTarget:
    """Put, get and run on this machine."""

    def __init__(self) -> None:
        """No settings: there is one local machine."""
        self.id = TargetId("local", socket.gethostname())

    def work_dir(self, cell_dir: Path) -> Path:
        """Where on the target the cell whose files shall end up in `cell_dir` is to run."""
        return cell_dir.absolute()

    def put(self, source: Path, destination: Path) -> None:
        """Copy a file from here to the target, unless it is there already. Raises DeviceError."""
        _copy(source, destination)

    def get(self, source_dir: Path, destination_dir: Path) -> None:
        """Copy the files of a directory on the target to here. Raises DeviceError."""
        if source_dir != destination_dir.absolute():
            for source in sorted(source_dir.iterdir()):
                _copy(source, destination_dir / source.name)

    def run(self, argv: Sequence[str], *, log: Path, lock: Path) -> Running:
        """Start a program in a session of its own; its stdout and stderr go to `log`.

        `lock` is a file that stays locked for as long as the program or anything that it started
        lives, even when the harness is gone: see `is_locked`. Raises DeviceError when it cannot
        be started.
        """
        try:
            lock_fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with log.open("wb") as out:
                    process = subprocess.Popen(
                        list(argv),
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        pass_fds=(lock_fd,),
                    )
            finally:
                os.close(lock_fd)
        except OSError as e:
            raise DeviceError(f"cannot start {argv[0]}: {e.strerror} ({e.filename})") from e
        return Running(process)

    def is_locked(self, lock: Path) -> bool:
        """Does a program started with this lock, or a descendant of one, still live?"""
        try:
            fd = os.open(lock, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def end_holders(self, lock: Path) -> None:
        """Ask the programs that keep a lock to end (SIGTERM): those that have the file open."""
        for process in Path("/proc").glob("[0-9]*"):
            if int(process.name) != os.getpid() and _has_open(process, lock):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(int(process.name), signal.SIGTERM)

    def tail(self, path: Path, size: int) -> bytes:
        """The last `size` bytes of a file that may still grow; nothing when it is absent."""
        try:
            with path.open("rb") as f:
                f.seek(0, os.SEEK_END)
                f.seek(max(0, f.tell() - size))
                return f.read(size)
        except FileNotFoundError:
            return b""

    def evict_page_cache(self, files: Iterable[Path]) -> PageCache:
        """Drop files from the page cache, so that a cell reads them from storage again.

        Raises DeviceError when a file cannot be read. Pages that another process has mapped stay;
        `after_bytes` says so.
        """
        before: int | None = 0
        after: int | None = 0
        for path in files:
            try:
                fd = os.open(path, os.O_RDONLY)
                try:
                    before = _plus(before, _resident_bytes(fd))
                    with contextlib.suppress(OSError):  # not every filesystem can
                        os.fdatasync(fd)  # dirty pages are not evicted
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                    after = _plus(after, _resident_bytes(fd))
                finally:
                    os.close(fd)
            except OSError as e:
                raise DeviceError(f"cannot evict {path} from the page cache: {e.strerror}") from e
        return PageCache(before, after)

    def close(self) -> None:
        """Nothing to release here."""


def _plus(total: int | None, more: int | None) -> int | None:
    return None if total is None or more is None else total + more


def _has_open(process: Path, file: Path) -> bool:
    try:
        return any(fd.samefile(file) for fd in (process / "fd").iterdir() if fd.exists())
    except OSError:  # gone, or another user's
        return False


def _copy(source: Path, destination: Path) -> None:
    try:
        if destination.exists() and source.samefile(destination):
            return
        shutil.copyfile(source, destination)
    except OSError as e:
        raise DeviceError(f"cannot copy {source} to {destination}: {e.strerror}") from e


def _resident_bytes(fd: int) -> int | None:
    """Bytes of an open file that are in the page cache (mincore), None where that fails."""
    size = os.fstat(fd).st_size
    if size == 0:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    number, size_t, pointer = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
    libc.mmap.argtypes = [pointer, size_t, number, number, number, ctypes.c_long]
    libc.munmap.argtypes = [pointer, size_t]
    libc.mincore.argtypes = [pointer, size_t, ctypes.c_char_p]
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        return None
    pages = -(-size // mmap.PAGESIZE)
    seen = ctypes.create_string_buffer(pages)
    failed = libc.mincore(address, size, seen)
    libc.munmap(address, size)
    if failed:
        return None
    odd = sum(seen.raw[:pages].count(bytes([value])) for value in range(1, 256, 2))
    return min(size, odd * mmap.PAGESIZE)
