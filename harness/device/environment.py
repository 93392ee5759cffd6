"""What a campaign was measured on and with: `environment.json`. Reads packages and machines.

The machine described is the one that the cells ran on; where another one drove it, that one stands
beside it. Everything that cannot be found out is None.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import harness
from harness.device.machine import (
    AndroidDevice,
    Cpu,
    MachineFacts,
    Storage,
    machine_behind,
    storage_behind,
    storage_of,
    this_machine,
)
from harness.device.suitability import Finding
from harness.records import TargetId
from harness.targets.android import SettingOutcome
from harness.targets.target import Target

# what a verdict or a stored run depends on; the rest of an installation does not touch the numbers
PACKAGES = ("hydra-core", "omegaconf", "mlflow", "numpy", "pandas", "psutil", "paramiko", "gguf")


@dataclass(frozen=True)
class Host:
    """The machine that the harness ran on, where the cells ran on another."""

    hostname: str
    os: str | None
    kernel: str
    architecture: str
    cpu: Cpu
    mem_total_bytes: int | None
    runs_storage: Storage


@dataclass(frozen=True)
class CellEngine:
    """An engine that `cells` brought instead of the campaign's; `path`: on the host."""

    cells: tuple[str, ...]
    path: str
    sha256: str
    build_id: str
    version: str | None


@dataclass(frozen=True)
class Environment:
    """`environment.json` is exactly this. `runs_storage`: where the cells wrote.

    `python` and `packages` are the host's; `host`: None where it is the machine itself. `settings`:
    of a phone, what was switched for the campaign.
    """

    harness_version: str
    hostname: str
    os: str | None
    kernel: str
    architecture: str
    hypervisor: bool | None
    cpu: Cpu
    mem_total_bytes: int | None
    swap_total_bytes: int | None
    page_bytes: int | None
    model_storage: Storage
    runs_storage: Storage
    model_path: str
    model_bytes: int
    model_sha256: str | None
    engine_build_id: str
    engine_version: str | None
    python: str
    packages: dict[str, str | None]
    target: TargetId
    android: AndroidDevice | None = None
    host: Host | None = None
    settings: tuple[SettingOutcome, ...] = ()
    preflight: tuple[Finding, ...] = ()
    cell_engines: tuple[CellEngine, ...] = ()


def describe_environment(
    *,
    target: Target,
    model_path: PurePath,
    model_bytes: int,
    model_sha256: str | None,
    engine_build_id: str,
    engine_version: str | None,
    runs_dir: Path,
    work_dir: PurePath | None = None,
    page_bytes: int | None = None,
    settings: Sequence[SettingOutcome] = (),
    preflight: Sequence[Finding] = (),
    cell_engines: Sequence[CellEngine] = (),
    root: Path = Path("/"),
) -> Environment:
    """The target and what is about to run on it; /proc, /sys and /etc of this machine below `root`.

    `model_path`: on the target, as is `work_dir`, an existing directory of the cells (not needed
    where the target is this machine). `page_bytes`: as the launcher there says. Raises DeviceError.
    """
    here = this_machine(root)
    local = target.id.kind == "local"
    runs_storage = storage_of(runs_dir, root)
    machine = here if local else machine_behind(target)
    return Environment(
        harness_version=harness.__version__,
        hostname=machine.hostname,
        os=machine.os,
        kernel=machine.kernel,
        architecture=machine.architecture,
        hypervisor="hypervisor" in machine.cpu.flags if machine.cpu.flags else None,
        cpu=machine.cpu,
        mem_total_bytes=machine.memory.get("MemTotal"),
        swap_total_bytes=machine.memory.get("SwapTotal"),
        page_bytes=machine.page_bytes if page_bytes is None else page_bytes,
        model_storage=storage_of(Path(model_path), root)
        if local
        else storage_behind(target, model_path),
        runs_storage=runs_storage
        if local
        else storage_behind(target, work_dir or model_path.parent),
        model_path=str(model_path),
        model_bytes=model_bytes,
        model_sha256=model_sha256,
        engine_build_id=engine_build_id,
        engine_version=engine_version,
        python=platform.python_version(),
        packages={name: _version(name) for name in PACKAGES},
        target=target.id,
        android=machine.android,
        host=None if local else _host(here, runs_storage),
        settings=tuple(settings),
        preflight=tuple(preflight),
        cell_engines=tuple(cell_engines),
    )


def _host(machine: MachineFacts, runs_storage: Storage) -> Host:
    return Host(
        hostname=machine.hostname,
        os=machine.os,
        kernel=machine.kernel,
        architecture=machine.architecture,
        cpu=machine.cpu,
        mem_total_bytes=machine.memory.get("MemTotal"),
        runs_storage=runs_storage,
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
