"""One thing that was looked at: what was seen, what it means for verdicts, what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warning", "failure"]
# worst first
LEVELS: tuple[Level, ...] = ("failure", "warning", "note", "ok")


@dataclass(frozen=True)
class Sign:
    """`about`: what was looked at, in a word or two; `do`: a command or setting, None: nothing.

    ok: as it should be. note: to be known, nothing is lost by it. warning: verdicts lose something
    by it. failure: nothing can be measured as long as it is so.
    """

    level: Level
    about: str
    seen: str
    means: str
    do: str | None = None


def worst_first(signs: Iterable[Sign]) -> list[Sign]:
    """By level, and within one in the order given."""
    return sorted(signs, key=lambda sign: LEVELS.index(sign.level))
