"""What a build reports and returns. Touches nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Stage = Literal["source", "configure", "compile", "check", "wait", "note"]
Source = Literal["built", "cached", "given"]
ToolchainKind = Literal["host", "zig", "ndk"]


@dataclass(frozen=True)
class BuildProgress:
    """One step of a build; `done` of `total` files when the stage counts, `elapsed_s` seconds.

    Stage `note` is worth keeping on screen (why something is made again); others may overwrite
    each other.
    """

    stage: Stage
    message: str
    elapsed_s: float
    done: int | None = None
    total: int | None = None

    @property
    def fraction(self) -> float | None:
        """Share of the stage that is done, 0 to 1; None when unknown."""
        if self.done is None or not self.total:
            return None
        return min(1.0, self.done / self.total)


Progress = Callable[[BuildProgress], None]


@dataclass(frozen=True)
class EngineBuild:
    """A pair of executables whose content was checked; `build_id` is the engine's.

    `version` is the engine's own `--version` line; None when a given binary does not have one, or
    nothing on this machine can run the engine to ask it. `sha256`: of the engine's file.
    """

    engine: Path
    launcher: Path
    build_id: str
    version: str | None
    source: Source
    sha256: str | None = None


@dataclass(frozen=True)
class EngineFile:
    """An engine alone, without a launcher: one that was given, or is in the cache."""

    engine: Path
    build_id: str
    version: str | None
    sha256: str


class Reporter:
    """Adds the elapsed time; silent without a callback."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._start = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the build began."""
        return time.monotonic() - self._start

    def __call__(
        self, stage: Stage, message: str, done: int | None = None, total: int | None = None
    ) -> None:
        """Report one step."""
        if self._progress is not None:
            self._progress(BuildProgress(stage, message, self.elapsed_s, done, total))
