"""System calls that Python 3.11 has no function for."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWTIME = 0x80
CLONE_NEWNS = 0x20000
CLONE_NEWUTS = 0x4000000
CLONE_NEWIPC = 0x8000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_SYS_PIDFD_GETFD = 438  # on every architecture

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    _checked(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    names = (source.encode(), target.encode(), kind.encode() or None)
    result = _libc.mount(*names, ctypes.c_ulong(flags), options.encode() or None)
    _checked(result, f"mount {source} on {target}")


def bind(source: str, target: str, read_only: bool = False) -> None:
    mount(source, target, flags=MS_BIND)
    if read_only:
        restrict(target)


def restrict(target: str) -> None:
    """Read-only, and else as it was: who is not root may not take a restriction back."""
    kept = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | kept)


def unmount(target: str, flags: int = 0) -> None:
    _checked(_libc.umount2(target.encode(), flags), f"unmount {target}")


def pivot_root(new: str, old: str) -> None:
    _checked(_libc.pivot_root(new.encode(), old.encode()), "pivot_root")


def copy_of_handle(pid: int, handle: int) -> int:
    """Another process's open file, as one of our own."""
    process = os.pidfd_open(pid)
    try:
        copy: int = _libc.syscall(_SYS_PIDFD_GETFD, process, handle, 0)
    finally:
        os.close(process)
    _checked(min(copy, 0), "pidfd_getfd")
    return copy


def set_hostname(name: str) -> None:
    _checked(_libc.sethostname(name.encode(), len(name)), "sethostname")


def die_with_parent(signal_number: int, parent: int) -> None:
    """Ends at once when the parent is gone already; `parent` 0: it is in another namespace."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl")
    if os.getppid() != parent:
        os._exit(1)


def set_name(name: str) -> None:
    _checked(_libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0), "prctl")
