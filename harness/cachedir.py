"""The user's cache directory: where it is, locks, hashes, atomic publication. Touches only that.

Everything below it can be deleted at any time; it is made again when needed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from harness.errors import DeviceError, UsageError

LOCK_POLL_S = 0.2


def cache_root(cache_dir: Path | str | None = None) -> Path:
    """The directory for what can be made again: `cache_dir`, or `$XDG_CACHE_HOME/moe-harness`.

    Created when absent. UsageError when it cannot be created or written.
    """
    if cache_dir is not None:
        root = Path(cache_dir).expanduser()
    else:
        # the XDG specification has relative paths ignored
        base = os.environ.get("XDG_CACHE_HOME", "")
        root = (Path(base) if base.startswith("/") else Path.home() / ".cache") / "moe-harness"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UsageError(
            f"cache directory {root}: {say_os_error(e)}; choose another with engine.cache_dir=DIR"
        ) from e
    if not os.access(root, os.W_OK | os.X_OK):
        raise UsageError(
            f"cache directory {root}: not writable; choose another with engine.cache_dir=DIR"
        )
    return root.resolve()


def say_os_error(error: OSError) -> str:
    """What the system said, in words, without the file name."""
    if error.errno == errno.ENOSPC:
        return "no space left on the device (disk full)"
    return (error.strerror or str(error)).lower()


def require_space(directory: Path, needed_bytes: int, what: str) -> None:
    """UsageError when the filesystem of `directory` has less than `needed_bytes` free."""
    free = shutil.disk_usage(directory).free
    if free < needed_bytes:
        raise UsageError(
            f"{directory}: disk full, {what} needs {needed_bytes / 2**20:.0f} MiB and "
            f"{free / 2**20:.0f} MiB are free; free some or choose another directory "
            "with engine.cache_dir=DIR"
        )


@contextlib.contextmanager
def guarded(what: str, where: Path) -> Iterator[None]:
    """OSErrors of the body (disk full, no permission) become one DeviceError."""
    try:
        yield
    except OSError as e:
        raise DeviceError(f"{what}: {e.filename or where}: {say_os_error(e)}") from e


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[str], None] | None = None) -> Iterator[int]:
    """Hold an exclusive lock on `path`; the kernel releases it when its holder dies.

    Yields the lock's file descriptor: a child that inherits it keeps the lock while it lives.
    `waiting` is called once with one line when another process holds it. DeviceError when the lock
    file cannot be made (disk full, read-only).
    """
    with guarded("locking", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with os.fdopen(handle, "r+", encoding="utf-8") as f:
        _acquire(f, waiting)
        try:
            # for whoever waits to read; on a full disk the lock holds without it
            with contextlib.suppress(OSError):
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            yield handle
        finally:
            fcntl.flock(f, fcntl.LOCK_UN)


def _acquire(f: TextIO, waiting: Callable[[str], None] | None) -> None:
    told = False
    while True:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if waiting is not None and not told:
                f.seek(0)
                holder = f.read(32).strip()
                waiting(f"waiting for process {holder or '?'}, which is making the same thing")
                told = True
            time.sleep(LOCK_POLL_S)


def sha256_file(path: Path, tick: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file in hex; `tick` receives the number of bytes of each chunk read."""
    digest = hashlib.sha256()
    buffer = bytearray(1 << 20)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as f:
        while n := f.readinto(buffer):
            digest.update(view[:n])
            if tick is not None:
                tick(n)
    return digest.hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write `value` so that a reader sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as f:
            os.fchmod(handle, 0o644)
            json.dump(value, f, indent=1)
            f.write("\n")
            f.flush()
            os.fsync(f.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`, or None when it is absent, unreadable or no JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def publish_dir(temporary: Path, final: Path) -> None:
    """Rename a finished directory into place, replacing what stands there. Hold the lock."""
    old: Path | None = None
    if final.exists():
        old = final.with_name(f".old-{os.getpid()}-{final.name}")
        final.rename(old)
    temporary.rename(final)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def remove_leftovers(directory: Path, prefix: str) -> None:
    """Delete temporary entries that a killed process left. Hold the lock."""
    for entry in directory.glob(f"{prefix}*"):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
