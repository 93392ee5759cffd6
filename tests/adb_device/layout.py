"""What a device has on the host's disk: programs, data, made-up /sys, state; and what it needs."""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import re
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

from .sensors import Sensors

PREFIX = "adb-device-"
SHELL_UID = 2000
_PROGRAMS = Path(__file__).parent / "programs"
_SHELL = Path("/bin/mksh-static")
_NAMESPACES = ("--mount", "--pid", "--uts", "--ipc", "--time", "--fork")
GROUPS = {
    "root": 0,
    "system": 1000,
    "input": 1004,
    "log": 1007,
    "adb": 1011,
    "sdcard_rw": 1015,
    "sdcard_r": 1028,
    "ext_data_rw": 1078,
    "shell": SHELL_UID,
    "inet": 3003,
    "readproc": 3009,
}
PROPERTIES = {
    "ro.build.type": "user",
    "ro.build.version.release": "14",
    "ro.build.version.sdk": "34",
    "ro.debuggable": "0",
    "ro.hardware": "made_up",
    "ro.product.cpu.abi": {"x86_64": "x86_64", "aarch64": "arm64-v8a"}.get(os.uname().machine, ""),
    "ro.product.manufacturer": "moe",
    "ro.product.model": "Pixel_T",
    "ro.secure": "1",
    "sys.boot_completed": "1",
}
# in Debian's toybox, and no command of an Android shell
_NOT_ON_ANDROID = """
    ascii base32 crc32 deallocvt eject fstype ftpget ftpput halt host httpd killall5 linux32 login
    mix mkpasswd nologin openvt partprobe passwd poweroff pwgen reset shred sntp su switch_root
    tftp tunctl unicode wget who
"""


class DeviceUnavailableError(Exception):
    """One line: why no device can be made here."""


@functools.cache
def why_unavailable() -> str | None:
    """What this machine lacks for a device, if anything."""
    for program, package in (("adb", "adb"), ("toybox", "toybox"), (str(_SHELL), "mksh")):
        if shutil.which(program) is None:
            return f"no {program} (Debian's package {package})"
    namespaces = list(_NAMESPACES if os.geteuid() == 0 else (*_NAMESPACES, "--map-root-user"))
    tried = subprocess.run(
        ["unshare", *namespaces, "mount", "-t", "proc", "proc", "/proc"],
        capture_output=True,
        check=False,
        text=True,
    )
    if tried.returncode != 0:
        return f"no namespaces of its own: {tried.stderr.strip()}"
    return None


def give_to_shell(path: Path) -> None:
    """Without root the shell is whoever runs this, in the device's own user namespace."""
    if os.geteuid() == 0:
        os.chown(path, SHELL_UID, SHELL_UID)


class Layout:
    """The directories of one device, below `base`."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "root"  # where the device's / is put together, in its own namespace
        self.system = base / "system"
        self.data = base / "data"
        self.image = base / "data.img"  # instead of `data`, when the data has a size of its own
        self.sys = base / "sys"
        self.state = base / "state"
        self.boot_id = base / "boot_id"
        self.log = base / "device.log"
        self.services = base / "services.log"

    def create(self, data_bytes: int | None) -> None:
        for directory in (self.root, self.system / "bin", self.data, self.sys, self.state):
            directory.mkdir(parents=True)
        give_to_shell(self.state)
        _install_programs(self.system)
        _install_settings(self.system / "etc")
        Sensors(self.sys).create()
        (self.state / "fixed_performance_support").write_text("yes\n")
        self.new_boot()
        if data_bytes is not None:
            if os.geteuid() != 0:
                raise DeviceUnavailableError("a file system of its own for /data needs root")
            with self.image.open("wb") as file:
                file.truncate(data_bytes)
            subprocess.run(
                ["mkfs.ext4", "-q", "-F", "-m", "0", self.image], check=True, capture_output=True
            )
        elif reason := _no_direct_io(self.data):
            raise DeviceUnavailableError(f"{self.data}: {reason}; name a directory elsewhere")

    def new_boot(self) -> None:
        """What a device forgets when it restarts."""
        self.boot_id.write_text(f"{uuid.uuid4()}\n")
        for name in ("fixed_performance", "properties", "thermal_status"):
            (self.state / name).unlink(missing_ok=True)


def make_base(parent: Path) -> Path:
    """Named after the process it is for, so that what a killed one left can be told and removed."""
    for left in parent.glob(f"{PREFIX}*"):
        owner = left.name.removeprefix(PREFIX).split("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(left, ignore_errors=True)
    base = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))
    base.chmod(0o755)
    return base


def _install_programs(system: Path) -> None:
    programs = system / "bin"
    shutil.copy(_SHELL, programs / "sh")
    toybox = Path(shutil.which("toybox") or "toybox")
    shutil.copy(toybox, programs / "toybox")
    # the libraries keep their places, which the program loader knows
    needed = subprocess.run(["ldd", toybox], check=True, capture_output=True, text=True).stdout
    for library in re.findall(r"(/\S+) \(0x", needed):
        target = system / "host" / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    names = subprocess.run([toybox], check=True, capture_output=True, text=True).stdout.split()
    for name in names:
        if name not in _NOT_ON_ANDROID.split():
            (programs / name).symlink_to("toybox")
    for source in _PROGRAMS.iterdir():
        with contextlib.suppress(FileNotFoundError):
            (programs / source.name).unlink()
        shutil.copy(source, programs / source.name)
        (programs / source.name).chmod(0o755)


def _install_settings(etc: Path) -> None:
    etc.mkdir()
    users = {"root": 0, "system": 1000, "shell": SHELL_UID}
    lines = [f"{name}:x:{uid}:{uid}::/:/system/bin/sh\n" for name, uid in users.items()]
    (etc / "passwd").write_text("".join(lines))
    (etc / "group").write_text("".join(f"{name}:x:{gid}:\n" for name, gid in GROUPS.items()))
    (etc / "properties").write_text("".join(f"{k}={v}\n" for k, v in PROPERTIES.items()))


def _no_direct_io(directory: Path) -> str | None:
    """Why direct I/O does not work there, if it does not."""
    path = directory / ".direct"
    block = mmap.mmap(-1, 4096)
    block.write(b"d" * 4096)
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        try:
            os.write(handle, block)
        finally:
            os.close(handle)
    except OSError as e:
        return f"no direct I/O there ({e.strerror})"
    finally:
        path.unlink(missing_ok=True)
    return None
