"""The machine the harness itself runs on. Touches processes, files and the page cache."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import json
import mmap
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path, PurePath

from harness.engine_env import engine_environment
from harness.errors import DeviceError
from harness.records import TargetId
from harness.targets.link import Finished
from harness.targets.lockfile import DEFAULT_LOCK, busy, open_lock, require_own_content
from harness.targets.target import CHANGED, Owner, PageCache

# Whoever looks whether a lock is held has it for an instant; on a busy machine that can be a few
# time slices, and a process that was killed needs as long to let go.
_TRIES, _AGAIN_S = 31, 0.01


class LocalRunning:
    """A program of this machine, a child of ours, from its start to its end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """Made by `LocalTarget.run`."""
        self._process = process

    @property
    def pid(self) -> int:
        """Process id."""
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
    """`Target` on this machine; see there."""

    def __init__(self, name: str | None = None, device_lock: str | None = None) -> None:
        """`name`: in records, by default the host's; `device_lock`: see conf/target/local.yaml."""
        self.id = TargetId("local", name or socket.gethostname())
        self._device_lock = Path(device_lock or DEFAULT_LOCK)
        self._lock_fd: int | None = None
        self._installed: dict[Path, tuple[int, int, int]] = {}

    def call(self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Finished:
        """Run a program to its end. Raises DeviceError when it cannot start, or takes too long."""
        try:
            done = subprocess.run(
                list(argv),
                capture_output=True,
                timeout=timeout_s,
                check=False,
                input=stdin,
                env=engine_environment(),
            )
        except subprocess.TimeoutExpired:
            raise DeviceError(f"{argv[0]}: gave no answer in {timeout_s:g} s") from None
        except OSError as e:
            raise DeviceError(f"{argv[0]}: cannot be run: {e.strerror}") from e
        return Finished(done.returncode, done.stdout, done.stderr)

    def claim(self, owner: Owner) -> None:
        """Hold the device's lock; the kernel lets it go when this process ends, however it ends."""
        fd = open_lock(self._device_lock)
        if not _locked_soon(fd):
            held = os.pread(fd, 65536, 0)
            os.close(fd)
            raise busy(self.id.name, held, time.monotonic())
        try:
            require_own_content(fd, self._device_lock)
        except BaseException:
            os.close(fd)
            raise
        self._lock_fd = fd
        about = {
            "owner": asdict(owner),
            "pid": os.getpid(),
            "since_unix_s": time.time(),
            "since_monotonic_ms": int(time.monotonic() * 1e3),
        }
        with contextlib.suppress(OSError):  # the lock holds; what it says is for people
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(about).encode(), 0)

    def install(self, file: Path, sha256: str, beside: str | None = None) -> PurePath:
        """It is here already."""
        self._installed[file] = _identity(file)
        return file

    def device_key(self) -> str | None:
        """By the machine's id."""
        with contextlib.suppress(OSError):
            if text := Path("/etc/machine-id").read_bytes().strip():
                return hashlib.sha256(text).hexdigest()[:16]
        return None

    def vouch(self) -> None:
        """The lock cannot be lost while we live; files are known by size, time and inode."""
        for file, before in self._installed.items():
            if _identity(file) != before:
                raise DeviceError(f"{file}: changed since the campaign began; {CHANGED}")

    def install_launcher(self, file: Path, sha256: str) -> PurePath:
        """It is here already."""
        return file

    def work_dir(self, cell_dir: Path) -> Path:
        """The cell runs where its files shall end up."""
        return cell_dir.absolute()

    def put(self, source: Path, destination: PurePath) -> None:
        """Copy a file, unless it is there already."""
        _copy(source, Path(destination))

    def get(self, source_dir: PurePath, destination_dir: Path) -> None:
        """Copy the files of a directory, unless it is the same."""
        if source_dir != destination_dir.absolute():
            for source in sorted(Path(source_dir).iterdir()):
                _copy(source, destination_dir / source.name)

    def clear(self, directory: PurePath) -> None:
        """Nothing: a cell's work directory is where its files stay."""

    def run(
        self,
        argv: Sequence[str],
        *,
        log: PurePath,
        lock: PurePath,
        tails: Mapping[PurePath, int],
    ) -> LocalRunning:
        """Start a program in a session of its own; `lock` stays held while a descendant lives."""
        try:
            lock_fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with Path(log).open("wb") as out:
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
        return LocalRunning(process)

    def is_locked(self, lock: PurePath) -> bool:
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

    def end_holders(self, lock: PurePath) -> None:
        """Ask the programs that keep a lock to end (SIGTERM): those that have the file open."""
        for process in Path("/proc").glob("[0-9]*"):
            if int(process.name) != os.getpid() and _has_open(process, Path(lock)):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(int(process.name), signal.SIGTERM)

    def tail(self, path: PurePath, size: int) -> bytes:
        """The last `size` bytes of a file that may still grow; nothing when it is absent."""
        try:
            with Path(path).open("rb") as f:
                f.seek(0, os.SEEK_END)
                f.seek(max(0, f.tell() - size))
                return f.read(size)
        except FileNotFoundError:
            return b""

    def evict_page_cache(self, files: Iterable[PurePath]) -> PageCache:
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

    def free_bytes(self, directory: PurePath) -> int:
        """Space left for files below a directory that exists."""
        try:
            stat = os.statvfs(directory)
        except OSError as e:
            raise DeviceError(f"{directory}: {e.strerror}") from e
        return stat.f_bavail * stat.f_frsize

    def keep(self) -> None:
        """It does not go away."""

    def heed(self, nap: Callable[[float], None]) -> None:
        """Nothing to wait for here."""

    def close(self) -> None:
        """Let the device go."""
        if self._lock_fd is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._lock_fd, 0)
            os.close(self._lock_fd)
            self._lock_fd = None


def _locked_soon(fd: int) -> bool:
    for _ in range(_TRIES):  # counted, not timed: we may not be running ourselves
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_AGAIN_S)
    return False


def _identity(file: Path) -> tuple[int, int, int]:
    try:
        found = file.stat()
    except OSError as e:
        raise DeviceError(f"{file}: {e.strerror}; {CHANGED}") from e
    return found.st_size, found.st_mtime_ns, found.st_ino


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
