"""What a machine says of itself: this one, or one that is a target. Reads, changes nothing.

The same files and programs are asked for on both; what cannot be found out is None.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath

from harness.targets.target import Target

_CALL_S = 30.0
# of an Android device; none that tells one device from another of its model
_PROPERTIES = {
    "manufacturer": "ro.product.manufacturer",
    "model": "ro.product.model",
    "soc": "ro.soc.model",
    "board": "ro.board.platform",
    "android": "ro.build.version.release",
    "sdk": "ro.build.version.sdk",
    "fingerprint": "ro.build.fingerprint",
}


@dataclass(frozen=True)
class Cpu:
    """`model` and `flags` of the first core; `logical` and `physical` counts; bytes of all RAM."""

    model: str | None
    logical: int | None
    physical: int | None
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Storage:
    """The filesystem that holds a path. `rotational` is None where the device does not say."""

    path: str
    filesystem: str | None
    device: str | None
    mount_point: str | None
    mount_options: str | None
    size_bytes: int | None
    free_bytes: int | None
    rotational: bool | None


@dataclass(frozen=True)
class AndroidDevice:
    manufacturer: str | None = None
    model: str | None = None
    soc: str | None = None
    board: str | None = None
    android: str | None = None
    sdk: str | None = None
    fingerprint: str | None = None  # of the system's build


@dataclass(frozen=True)
class MachineFacts:
    """`page_bytes`: None where only the launcher can tell. `android`: None where it is none."""

    hostname: str
    os: str | None
    kernel: str
    architecture: str
    cpu: Cpu
    memory: dict[str, int]
    page_bytes: int | None
    android: AndroidDevice | None = None


def this_machine(root: Path = Path("/")) -> MachineFacts:
    """/proc and /etc are read below `root`."""
    return MachineFacts(
        hostname=socket.gethostname(),
        os=os_name(_text(root / "etc/os-release")),
        kernel=f"{platform.system()} {platform.release()} {platform.version()}",
        architecture=platform.machine(),
        cpu=parse_cpuinfo(_text(root / "proc/cpuinfo")),
        memory=parse_meminfo(_text(root / "proc/meminfo")),
        page_bytes=os.sysconf("SC_PAGE_SIZE"),
    )


def machine_behind(target: Target) -> MachineFacts:
    """Raises DeviceError when the target cannot be asked at all."""
    names = [_said(target, "uname", flag) for flag in ("-n", "-s", "-r", "-v", "-m")]
    hostname, system, release, version, architecture = (name.strip() for name in names)
    android = _android(target)
    page = _said(target, "getconf", "PAGESIZE").strip()
    return MachineFacts(
        hostname=hostname,
        os=os_name(_said(target, "cat", "/etc/os-release"))
        if android is None
        else f"Android {android.android} (SDK {android.sdk})",
        kernel=f"{system} {release} {version}".strip(),
        architecture=architecture,
        cpu=parse_cpuinfo(_said(target, "cat", "/proc/cpuinfo")),
        memory=parse_meminfo(_said(target, "cat", "/proc/meminfo")),
        page_bytes=int(page) if page.isdigit() else None,
        android=android,
    )


def _said(target: Target, *argv: str) -> str:
    """Standard output; empty when there is no such program or file."""
    done = target.call(argv, timeout_s=_CALL_S)
    return done.stdout.decode(errors="replace") if done.code == 0 else ""


def _android(target: Target) -> AndroidDevice | None:
    # a program of that name elsewhere is not Android's
    if target.call(["test", "-d", "/system/bin"], timeout_s=_CALL_S).code != 0:
        return None
    values = {name: _said(target, "getprop", key).strip() for name, key in _PROPERTIES.items()}
    return AndroidDevice(**{name: value or None for name, value in values.items()})


# --- storage -------------------------------------------------------------------------------------


def storage_of(path: Path, root: Path = Path("/")) -> Storage:
    """The filesystem that holds `path`, or its nearest existing parent."""
    path = path.absolute()
    existing = next(p for p in (path, *path.parents) if p.exists())
    space = os.statvfs(existing)
    device_id = existing.stat().st_dev
    number = f"{os.major(device_id)}:{os.minor(device_id)}"
    mounts = _text(root / "proc/self/mountinfo")
    return _storage(
        path,
        _mount(mounts, number, existing.resolve()),
        number,
        size_bytes=space.f_blocks * space.f_frsize,
        free_bytes=space.f_bavail * space.f_frsize,
        read=lambda file: _text(root / file.lstrip("/")),
    )


def storage_behind(target: Target, path: PurePath) -> Storage:
    """The same on a target, of a path that exists there."""
    real = _said(target, "readlink", "-f", "--", str(path)).rstrip("\n") or str(path)
    space = _said(target, "stat", "-f", "-c", "%S %b %a", "--", str(path)).split()
    unit, blocks, free = (
        (int(word) for word in space)
        if len(space) == 3 and all(word.isdigit() for word in space)
        else (None, None, None)
    )
    mount = _mount(_said(target, "cat", "/proc/self/mountinfo"), None, PurePosixPath(real))
    return _storage(
        path,
        mount,
        mount.get("number"),
        size_bytes=None if unit is None or blocks is None else unit * blocks,
        free_bytes=None if unit is None or free is None else unit * free,
        read=lambda file: _said(target, "cat", file),
    )


def _storage(
    path: PurePath,
    mount: dict[str, str],
    number: str | None,
    *,
    size_bytes: int | None,
    free_bytes: int | None,
    read: Callable[[str], str],
) -> Storage:
    return Storage(
        path=str(path),
        filesystem=mount.get("type"),
        device=mount.get("source"),
        mount_point=mount.get("point"),
        mount_options=mount.get("options"),
        size_bytes=size_bytes,
        free_bytes=free_bytes,
        rotational=_rotational(read, number),
    )


def _mount(mountinfo: str, number: str | None, path: PurePath) -> dict[str, str]:
    """The innermost mount above `path`, on device `number` if one is (btrfs hides its own).

    Of several on the same point the last one covers the others.
    """
    best: dict[str, str] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, rest = left.split(), right.split()
        if len(fields) < 6 or len(rest) < 2:
            continue
        point = fields[4].replace("\\040", " ")
        if not path.is_relative_to(point):
            continue
        rank = (fields[2] == number, len(point))
        if not best or rank >= (best["number"] == number, len(best["point"])):
            best = {
                "number": fields[2],
                "point": point,
                "options": fields[5],
                "type": rest[0],
                "source": rest[1],
            }
    return best


def _rotational(read: Callable[[str], str], number: str | None) -> bool | None:
    if number is None:
        return None
    device = f"/sys/dev/block/{number}"
    # a partition has no queue of its own: its disk, one level up, does
    for queue in (f"{device}/queue", f"{device}/../queue"):
        text = read(f"{queue}/rotational").strip()
        if text:
            return text == "1"
    return None


# --- what the files say --------------------------------------------------------------------------


def parse_cpuinfo(text: str) -> Cpu:
    """Reads /proc/cpuinfo of x86 and of Arm (which names no model, only part numbers)."""
    cores = [_fields(block) for block in text.split("\n\n") if "processor" in block]
    first = cores[0] if cores else {}
    physical = {(c.get("physical id"), c["core id"]) for c in cores if "core id" in c}
    model = first.get("model name") or first.get("Hardware")
    if model is None and "CPU part" in first:
        parts = sorted({f"{c.get('CPU implementer')}/{c.get('CPU part')}" for c in cores})
        model = "Arm implementer/part " + ", ".join(parts)
    return Cpu(
        model=model,
        logical=len(cores) or None,
        physical=len(physical) or None,
        flags=tuple((first.get("flags") or first.get("Features") or "").split()),
    )


def parse_meminfo(text: str) -> dict[str, int]:
    """The fields of /proc/meminfo in bytes."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        number, _, unit = rest.strip().partition(" ")
        if number.isdecimal() and number.isascii():
            found[name] = int(number) * (1024 if unit == "kB" else 1)
    return found


def os_name(os_release: str) -> str | None:
    """The name for people in /etc/os-release."""
    for line in os_release.splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip().strip("\"'")
    return None


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
