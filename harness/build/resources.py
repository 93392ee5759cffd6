"""Where the engine's C++ sources are. Reads the installation only."""

from __future__ import annotations

from pathlib import Path

from harness.errors import UsageError

PACKAGE = Path(__file__).resolve().parents[1]


def engine_source_dir() -> Path:
    """`engine_src` beside the package (a checkout), or the copy that an installed wheel carries."""
    candidates = (PACKAGE.parent / "engine_src", PACKAGE / "_engine_src")
    for directory in candidates:
        if (directory / "CMakeLists.txt").is_file():
            return directory
    raise UsageError(
        f"the engine's sources are missing: no CMakeLists.txt in {candidates[0]} or "
        f"{candidates[1]}; reinstall moe-harness or set engine.binary=FILE"
    )
