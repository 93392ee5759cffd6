"""Other builds of the fake engine: executables with a build id, a pace and faults of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parent
_SCRIPT = """#!/usr/bin/env python3
import sys
if sys.argv[1:] == ["--version"]:
    print("moe-engine 0.1.0 build {said} llama.cpp fake")
    sys.exit()
{at_start}
sys.path.insert(0, {tests!r})
import fake_engine
fake_engine.BUILD_ID = {build_id!r}
fake_engine.PACE = {pace!r}
fake_engine.STRAY = {stray!r}
fake_engine.UNKNOWN = {unknown!r}
sys.exit(fake_engine.main())
"""


def fake_build_at(
    path: Path,
    build_id: str,
    *,
    pace: float = 1.0,
    stray: int = 0,
    unknown: Sequence[str] = (),
    says: str | None = None,
    at_start: str = "",
) -> Path:
    """An executable at `path`.

    `pace`: so many times the time a token takes; `stray`: added to the id of the last token;
    `unknown`: flags that it refuses; `says`: what it calls itself, `build_id` by default;
    `at_start`: a line of Python that it runs first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        _SCRIPT.format(
            said=says or build_id,
            tests=str(TESTS),
            build_id=build_id,
            pace=pace,
            stray=stray,
            unknown=tuple(unknown),
            at_start=at_start,
        )
    )
    path.chmod(0o755)
    return path
