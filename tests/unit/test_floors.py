"""Imports never run upward: every room stands above all that it imports."""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "harness"

# From the roof down. A room may import rooms of lower floors, and its own; rooms that share a floor
# do not know each other.
FLOORS: list[set[str]] = [
    {"__main__"},
    {"cli"},
    {"info"},
    {"sweep"},
    {"campaign"},
    {"doctor"},
    {"verbs", "power"},
    {"steering", "gate"},
    {"judgement", "session"},
    {"measuring"},
    {"launching"},
    {"tracking_server", "tracking_process"},
    {"tracking_worker"},
    {"report", "tracking", "tracking_pages", "importers", "history", "watching"},
    {"tracking_log"},
    {"tracking_data", "tracking_views", "tracking_runs"},
    {"tracking_read"},
    {"tracking_store", "tracking_cells", "collect"},
    {"tracking_text", "tracking_inputs", "tracking_client"},
    {"device"},
    {"analysis", "verify", "events"},
    {"targets", "engines"},
    {"plan", "journal", "rundir", "configure"},
    {"models", "build", "replay"},
    {"cachedir"},
    {"verdicts"},
    {"validation"},
    {"records", "schema"},
    {"planned", "readings"},
    {
        "engine_flags",
        "engine_env",
        "findings",
        "looks",
        "session_config",
        "target_config",
        "tracking_config",
        "build_config",
        "memory_config",
        "nightly_config",
    },
    {"jsonfile"},
    {"typed", "jsonable"},
    {"stopping", "progress"},
    {"screen"},
    {"errors", "words"},
    {"__init__"},
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

# who may import what is heavy or has one owner
ONLY_IN = {
    "mlflow": {"tracking", "tracking_server", "tracking_pages"},
    "rich": {"report", "screen", "progress"},
    "matplotlib": {"report"},
    "jinja2": {"report"},
    "gguf": {"verify", "models"},  # models: training alone
    "hydra": {"configure", "sweep"},
    "omegaconf": {"configure", "models"},
}
MOST_LINES = 400
# analysis is pure: it must not reach the disk, a process or the network
NOT_IN_ANALYSIS = {"os", "pathlib", "subprocess", "socket", "shutil", "tempfile", "io", "psutil"}


def modules() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*.py") if "_engine_src" not in p.parts)


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@functools.cache  # several tests ask about every file
def read(path: Path) -> tuple[str | None, list[tuple[int, str]]]:
    """What a file says of itself, and every module that it imports, wherever, with its line."""
    found: list[tuple[int, str]] = []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            if node.module == "harness":
                found += [(node.lineno, f"harness.{alias.name}") for alias in node.names]
            else:
                found.append((node.lineno, str(node.module)))
    return ast.get_docstring(tree), found


def imports(path: Path) -> list[tuple[int, str]]:
    return read(path)[1]


def rooms_used(path: Path) -> list[tuple[int, str]]:
    used = []
    for line, name in imports(path):
        parts = name.split(".")
        if parts[0] == "harness":
            room = parts[1] if len(parts) > 1 else "__init__"
            # `from harness import __version__` names something of the package itself
            used.append((line, room if room in FLOOR or (ROOT / room).exists() else "__init__"))
    return used


def test_every_room_has_its_floor() -> None:
    rooms = {room_of(p) for p in modules()}
    assert rooms <= FLOOR.keys(), f"no floor for {sorted(rooms - FLOOR.keys())}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_no_import_runs_upward(path: Path) -> None:
    room = room_of(path)
    wrong = [
        f"{path}:{line}: {room} imports {used}"
        for line, used in rooms_used(path)
        if used != room and FLOOR[used] <= FLOOR[room]
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_what_has_one_owner_is_imported_by_it_alone(path: Path) -> None:
    room = room_of(path)
    wrong = [
        f"{path}:{line}: {room} imports {name}"
        for line, name in imports(path)
        if room not in ONLY_IN.get(name.split(".")[0], {room})
    ]
    assert not wrong, "\n".join(wrong)


def test_analysis_reaches_nothing_but_its_arguments() -> None:
    wrong = [
        f"{path}:{line}: {name}"
        for path in modules()
        if room_of(path) == "analysis"
        for line, name in imports(path)
        if name.split(".")[0] in NOT_IN_ANALYSIS
    ]
    assert not wrong, "\n".join(wrong)


def test_every_module_and_every_room_says_what_it_is_for() -> None:
    assert not [str(p) for p in modules() if not read(p)[0]]


def test_no_module_is_too_long_to_be_read_at_once() -> None:
    """One that is has two concerns: split it along them."""
    lengths = {p: p.read_text(encoding="utf-8").count("\n") for p in modules()}
    assert not {str(p.relative_to(ROOT)): n for p, n in lengths.items() if n > MOST_LINES}


def test_nothing_is_imported_that_is_not_declared() -> None:
    """A third-party import must stand in pyproject.toml, or a fresh install lacks it."""
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
    lines = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        lines += extra
    declared = {re.split(r"[<>=\[; ]", line)[0].lower().replace("-", "_") for line in lines}
    # imported under another name; PyYAML comes with omegaconf
    declared |= {"hydra", "yaml", "llama_cpp"}
    third = {
        (str(path.relative_to(ROOT)), top)
        for path in modules()
        for _, name in imports(path)
        if (top := name.split(".")[0]) not in sys.stdlib_module_names and top != "harness"
    }
    assert not {t for t in third if t[1].lower() not in declared}
