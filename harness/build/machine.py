"""The machine that a build is for: its architecture, and the level of instructions it allows.

Pure, but for `this_machine`, which reads /proc/cpuinfo. A static executable cannot choose its
kernels when it runs, so the level is chosen before, by what all cores of the target have.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UsageError

ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
# By architecture: MOE_CPU_LEVEL of engine_src, and what it needs of /proc/cpuinfo; lowest first,
# each needs all that the one before it needs. The engine checks the same at its start.
LEVELS: Mapping[str, Mapping[str, frozenset[str]]] = {
    "x86_64": {
        "baseline": frozenset(),
        "avx2": frozenset({"avx2", "fma", "f16c", "bmi2"}),
    },
    "aarch64": {
        "armv8-a": frozenset(),
        "armv8.2-a+dotprod+fp16": frozenset({"atomics", "asimdrdm", "fphp", "asimdhp", "asimddp"}),
        "armv8.2-a+dotprod+fp16+i8mm": frozenset(
            {"atomics", "asimdrdm", "fphp", "asimdhp", "asimddp", "i8mm"}
        ),
    },
}
# of every other architecture, which only a machine of that architecture can build for
ONLY_LEVEL = "baseline"
# names of the line with a core's features: x86, Arm
_FEATURE_LINES = ("flags", "features")
# e_machine of an ELF header
_ELF_MACHINES = {62: "x86_64", 183: "aarch64"}


@dataclass(frozen=True)
class TargetMachine:
    """What a build must know of the machine it is for."""

    architecture: str  # x86_64, aarch64; others as `uname -m` says them
    features: frozenset[str]  # that every core has, as /proc/cpuinfo names them
    android: bool = False


def machine_from(uname_m: str, cpuinfo: str, android: bool = False) -> TargetMachine:
    """From `uname -m` and the text of /proc/cpuinfo. Cores may differ: what all have counts."""
    name = uname_m.strip().lower()
    return TargetMachine(ARCHITECTURES.get(name, name), common_features(cpuinfo), android)


def common_features(cpuinfo: str) -> frozenset[str]:
    """The features that every core of /proc/cpuinfo has; none where it names none."""
    cores = []
    for line in cpuinfo.splitlines():
        name, colon, values = line.partition(":")
        if colon and name.strip().lower() in _FEATURE_LINES:
            cores.append(frozenset(values.split()))
    return frozenset.intersection(*cores) if cores else frozenset()


def this_machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> TargetMachine:
    """The machine that this program runs on, of whatever architecture."""
    name = platform.machine().lower()
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return TargetMachine(ARCHITECTURES.get(name, name), common_features(text))


def level_of(machine: TargetMachine) -> str:
    """The highest level that the machine has."""
    level = ONLY_LEVEL
    for name, needs in LEVELS.get(machine.architecture, {}).items():
        if needs <= machine.features:
            level = name
    return level


def machine_at(architecture: str, level: str | None, android: bool) -> TargetMachine:
    """A machine that has just `level`; None is the lowest. UsageError for a level it has not."""
    levels = LEVELS[architecture]
    if level is None:
        level = next(iter(levels))
    if level not in levels:
        raise UsageError(f"--level {level}: {architecture} has {', '.join(levels)}")
    return TargetMachine(architecture, levels[level], android)


def runner(machine: TargetMachine) -> tuple[str, ...] | None:
    """What to put before a program of that machine to run it here; None when nothing here can.

    Not for programs of Android's own C library: their loader is not here.
    """
    if machine.architecture == this_machine().architecture:
        return ()
    emulator = shutil.which(f"qemu-{machine.architecture}")
    return None if emulator is None else (emulator, "-cpu", "max")


def elf_architecture(program: Path) -> str | None:
    """The architecture of an ELF file, None for any other file or architecture."""
    with program.open("rb") as f:
        head = f.read(20)
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return None
    little = head[5] == 1
    return _ELF_MACHINES.get(int.from_bytes(head[18:20], "little" if little else "big"))
