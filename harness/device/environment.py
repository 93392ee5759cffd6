"""What a campaign was measured on and with: `environment.json`. Reads /proc, /sys and the packages.

Everything that cannot be found out is None.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
from dataclasses import dataclass
from pathlib import Path

import harness

# what a verdict or a stored run depends on; the rest of an installation does not touch the numbers
PACKAGES = ("hydra-core", "omegaconf", "mlflow", "numpy", "pandas", "psutil", "paramiko", "gguf")


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
class Environment:
    """`environment.json` is exactly this."""

    harness_version: str
    hostname: str
    os: str | None
    kernel: str
    architecture: str
    hypervisor: bool | None
    cpu: Cpu
    mem_total_bytes: int | None
    swap_total_bytes: int | None
    page_bytes: int
    model_storage: Storage
    runs_storage: Storage
    model_path: str
    model_bytes: int
    model_sha256: str | None
    engine_build_id: str
    engine_version: str | None
    python: str
    packages: dict[str, str | None]


def describe_environment(
    *,
    model_files: tuple[Path, ...],
    model_sha256: str | None,
    engine_build_id: str,
    engine_version: str | None,
    runs_dir: Path,
    root: Path = Path("/"),
) -> Environment:
    """This machine and what is about to run on it; /proc, /sys and /etc are read below `root`."""
    cpu = parse_cpuinfo(_text(root / "proc/cpuinfo") or "")
    memory = parse_meminfo(_text(root / "proc/meminfo") or "")
    return Environment(
        harness_version=harness.__version__,
        hostname=socket.gethostname(),
        os=_os_name(root),
        kernel=f"{platform.system()} {platform.release()} {platform.version()}",
        architecture=platform.machine(),
        hypervisor="hypervisor" in cpu.flags if cpu.flags else None,
        cpu=cpu,
        mem_total_bytes=memory.get("MemTotal"),
        swap_total_bytes=memory.get("SwapTotal"),
        page_bytes=os.sysconf("SC_PAGE_SIZE"),
        model_storage=storage_of(model_files[0], root),
        runs_storage=storage_of(runs_dir, root),
        model_path=str(model_files[0]),
        model_bytes=sum(path.stat().st_size for path in model_files),
        model_sha256=model_sha256,
        engine_build_id=engine_build_id,
        engine_version=engine_version,
        python=platform.python_version(),
        packages={name: _version(name) for name in PACKAGES},
    )


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
        if number.isdigit():
            found[name] = int(number) * (1024 if unit == "kB" else 1)
    return found


def storage_of(path: Path, root: Path = Path("/")) -> Storage:
    """The filesystem that holds `path`, or its nearest existing parent."""
    path = path.absolute()
    existing = next(p for p in (path, *path.parents) if p.exists())
    space = os.statvfs(existing)
    device_id = existing.stat().st_dev
    number = f"{os.major(device_id)}:{os.minor(device_id)}"
    mount = _mount(_text(root / "proc/self/mountinfo") or "", number, existing.resolve())
    rotational = _rotational(root, number)
    return Storage(
        path=str(path),
        filesystem=mount.get("type"),
        device=mount.get("source"),
        mount_point=mount.get("point"),
        mount_options=mount.get("options"),
        size_bytes=space.f_blocks * space.f_frsize,
        free_bytes=space.f_bavail * space.f_frsize,
        rotational=rotational,
    )


def _mount(mountinfo: str, number: str, path: Path) -> dict[str, str]:
    """The innermost mount above `path` on device `number` (or on any, as btrfs hides its own)."""
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


def _rotational(root: Path, number: str) -> bool | None:
    device = root / "sys/dev/block" / number
    # a partition has no queue of its own: its disk, one level up, does
    for queue in (device / "queue", device / "../queue"):
        text = _text(queue / "rotational")
        if text is not None:
            return text.strip() == "1"
    return None


def _os_name(root: Path) -> str | None:
    for line in (_text(root / "etc/os-release") or "").splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip().strip("\"'")
    return None


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None
