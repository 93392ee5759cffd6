"""Helpers for the tests of the launcher: command lines, results, processes, patience."""

from __future__ import annotations

import contextlib
import csv
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1 << 20
PYTHON = sys.executable

Run = Callable[..., dict[str, Any]]


def command(
    launcher: Path, directory: Path, options: dict[str, Any], program: list[Any]
) -> list[Any]:
    settings = {"probe_s": 0} | options
    flags: list[Any] = []
    for name, value in settings.items():
        for one in value if isinstance(value, list) else [value]:
            flags += ["--" + name.replace("_", "-"), str(one)]
    return [launcher, "run", "--dir", directory, *flags, "--", *program]


def result_of(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "result.json").read_bytes())


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def wait_for(condition: Callable[[], Any], seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("did not happen in time")


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def open_files(pid: int) -> set[Path]:
    """What a process has open; it may open and close meanwhile."""
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(fd.readlink())
    return found


def file_text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
