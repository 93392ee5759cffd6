"""One boot: namespaces of its own, a root put together in them, and a first process whose end is
the end of everything in there."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from . import kernel
from .fuse import FuseServer, has_fuse, mount_fuse
from .layout import GROUPS, SHELL_UID, Layout

_MEDIA_UID = 1023
_SHARED_STORAGE_GID = 1015
# a device is up for so long when adb can reach it first
_UPTIME_AT_BOOT_S = 20
_CLOCKS = {"monotonic": "CLOCK_MONOTONIC", "boottime": "CLOCK_BOOTTIME"}


def boot(layout: Layout, entrance: Path | None, adbd: Callable[[], None]) -> tuple[int, int]:
    """Starts the device; `adbd` runs in it as Android's user shell.

    Returns the process to wait for, which ends after all of the device has, and the device's first
    process, both as seen from here.
    """
    reading, writing = os.pipe()
    here = os.getpid()
    watcher = os.fork()
    if watcher:
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            first = pipe.read()
        return watcher, int(first or b"0")
    try:
        kernel.die_with_parent(signal.SIGKILL, here)
        os.close(reading)
        _watch(layout, entrance, adbd, writing)
    except BaseException:  # a forked process must not run on in its parent's code
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)


def _watch(layout: Layout, entrance: Path | None, adbd: Callable[[], None], tell: int) -> None:
    kernel.set_name("adb-device-boot")
    if entrance is not None:
        entrance.write_text(str(os.getpid()))
    root = os.geteuid() == 0
    if not root:
        _become_the_shell()
    kernel.unshare(
        kernel.CLONE_NEWNS
        | kernel.CLONE_NEWPID
        | kernel.CLONE_NEWUTS
        | kernel.CLONE_NEWIPC
        | kernel.CLONE_NEWTIME
    )
    _restart_clocks()
    first = os.fork()
    if first == 0:
        os.close(tell)
        try:
            kernel.die_with_parent(signal.SIGKILL, 0)
            _first_process(layout, adbd, root)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(1)
    os.write(tell, str(first).encode())
    os.close(tell)
    os.waitpid(first, 0)
    os._exit(0)


def _become_the_shell() -> None:
    """Without root: a user namespace, in which one is the only user there is, Android's shell."""
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{SHELL_UID} {user} 1"),
        ("gid_map", f"{SHELL_UID} {group} 1"),
    ):
        Path(f"/proc/self/{name}").write_text(text)


def _restart_clocks() -> None:
    """The clocks that count from the boot start anew for what is forked from here."""
    import time

    lines = []
    for name, clock in _CLOCKS.items():
        now = int(time.clock_gettime(getattr(time, clock)))
        lines.append(f"{name} {_UPTIME_AT_BOOT_S - now} 0")
    Path("/proc/self/timens_offsets").write_text("\n".join(lines) + "\n")


def _first_process(layout: Layout, adbd: Callable[[], None], root: bool) -> None:
    kernel.set_name("init")
    kernel.set_hostname("localhost")
    shared = _put_together(layout, root)
    if shared is not None:
        _serve_shared_storage(shared, _SHARED_STORAGE_GID if root else SHELL_UID)
    child = os.fork()
    if child == 0:
        kernel.set_name("adbd")
        if root:
            os.setgroups([gid for gid in GROUPS.values() if gid not in (0, 1000, SHELL_UID)])
        os.setresgid(SHELL_UID, SHELL_UID, SHELL_UID)
        os.setresuid(SHELL_UID, SHELL_UID, SHELL_UID)
        os.umask(0o022)
        adbd()
        os._exit(0)
    while os.wait()[0] != child:
        pass
    os._exit(0)


def _put_together(layout: Layout, is_root: bool) -> int | None:
    """Returns where the requests to the shared storage are read; None: there is no FUSE here."""
    kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    root = str(layout.root)
    kernel.mount("tmpfs", root, "tmpfs", options="mode=755,size=1m")
    os.chdir(root)
    for name in ("proc", "sys", "dev", "data", "system", "storage", "mnt", "vendor", "product"):
        Path(name).mkdir()
    Path("storage/emulated").mkdir()
    Path("sdcard").symlink_to("/storage/emulated/0")
    Path("bin").symlink_to("/system/bin")
    Path("etc").symlink_to("/system/etc")
    for directory in (layout.system / "host").iterdir():
        Path(directory.name).symlink_to(f"/system/host/{directory.name}")
    quiet = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("proc", "proc", "proc", quiet)
    kernel.bind(str(layout.system), "system", read_only=True)
    kernel.bind(str(layout.sys), "sys", read_only=True)
    kernel.bind(str(layout.boot_id), "proc/sys/kernel/random/boot_id", read_only=True)
    _mount_data(layout, is_root)
    _make_devices()
    owner = 0 if is_root else SHELL_UID
    shared = mount_fuse("storage/emulated", owner) if has_fuse() else None
    kernel.pivot_root(".", ".")
    kernel.unmount(".", kernel.MNT_DETACH)
    os.chdir("/")
    kernel.restrict("/")
    return shared


def _mount_data(layout: Layout, is_root: bool) -> None:
    if layout.image.exists():
        subprocess.run(["mount", "-o", "loop", layout.image, "data"], check=True)
    else:
        kernel.bind(str(layout.data), "data")
    for name, mode, owner in (
        ("data", 0o771, 1000),
        ("data/local", 0o751, 0),
        ("data/local/tmp", 0o771, SHELL_UID),
        ("data/media", 0o770, _MEDIA_UID),
        ("data/media/0", 0o770, _MEDIA_UID),
        ("data/misc", 0o755, 0),
        ("data/misc/made_up", 0o755, SHELL_UID),
    ):
        Path(name).mkdir(exist_ok=True)
        if is_root:
            os.chown(name, owner, owner)
        Path(name).chmod(mode)
    kernel.bind(str(layout.state), "data/misc/made_up")


def _make_devices() -> None:
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        Path(f"dev/{name}").touch()
        kernel.bind(f"/dev/{name}", f"dev/{name}")
    Path("dev/pts").mkdir()
    kernel.mount("devpts", "dev/pts", "devpts", options="newinstance,ptmxmode=0666,mode=0600")
    Path("dev/ptmx").symlink_to("pts/ptmx")
    Path("dev/fd").symlink_to("/proc/self/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        Path(f"dev/{name}").symlink_to(f"/proc/self/fd/{number}")


def _serve_shared_storage(requests: int, owner: int) -> None:
    """/sdcard, by a process of its own."""
    if os.fork() == 0:
        kernel.set_name("sdcard")
        FuseServer(requests, Path("/data/media"), owner).run()
        os._exit(0)
    os.close(requests)


def listen_on(port: int) -> socket.socket:
    sock = reserve(port)
    sock.listen(16)
    return sock


def reserve(port: int) -> socket.socket:
    """Bound and not listening: connections are refused, and nobody else is given the port."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    return sock
