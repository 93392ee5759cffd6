"""Executables that are there: are they usable, which build are they. Runs `--version`."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from harness.build.machine import TargetMachine, elf_architecture, runner, this_machine
from harness.cachedir import sha256_file
from harness.engine_env import engine_environment
from harness.errors import UsageError

VERSION_LINE = re.compile(r"^moe-engine \S+ build (\S+)")


def given_program(path: Path | None, key: str, machine: TargetMachine | None = None) -> Path | None:
    """What the user named, checked as `program_at` does, or None."""
    return None if path is None else program_at(path, key, machine)


def program_at(path: Path, key: str, machine: TargetMachine | None = None) -> Path:
    """An executable. UsageError when it is none, or of another architecture than `machine`."""
    found = Path(path).expanduser().absolute()
    if not found.is_file():
        raise UsageError(f"{key}: {found} does not exist or is no file; give an executable")
    if not os.access(found, os.X_OK):
        raise UsageError(f"{key}: {found} is not executable; chmod +x it")
    if machine is not None:
        architecture = elf_architecture(found)
        if architecture not in {None, machine.architecture}:
            raise UsageError(
                f"{key}: {found} is for {architecture}, the target is {machine.architecture}"
            )
    return found


def describe(engine: Path, machine: TargetMachine | None = None) -> tuple[str | None, str]:
    """The engine's `--version` line and its build id. None: it is not a moe-engine, or is for a
    machine whose programs cannot be run here.

    Without a line the id is made from the file's SHA-256. UsageError when it is for this machine
    and cannot be run.
    """
    run_with = () if machine is None else runner(machine)
    foreign = machine is not None and machine.architecture != this_machine().architecture
    line = None
    if run_with is not None:
        try:
            line = version_line(engine, run_with)
        except UsageError:
            if not foreign:
                raise
    build_id = build_id_of(line)
    if build_id is None:
        return None, f"sha256-{sha256_file(engine)[:12]}"
    return line, build_id


def build_id_of(version: str | None) -> str | None:
    """What a `--version` line names; None where it is no moe-engine's."""
    found = VERSION_LINE.match(version or "")
    return None if found is None else found[1]


def version_line(program: Path, run_with: tuple[str, ...] = ()) -> str | None:
    """First line of `PROGRAM --version`, None when it fails. UsageError when it cannot be run."""
    try:
        done = subprocess.run(
            [*run_with, program, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
            check=False,
            stdin=subprocess.DEVNULL,
            env=engine_environment(),
        )
    except subprocess.TimeoutExpired:
        return None
    except OSError as e:
        raise UsageError(f"{program}: cannot be run on this machine ({e.strerror})") from e
    lines = done.stdout.splitlines()
    return lines[0] if done.returncode == 0 and lines else None
