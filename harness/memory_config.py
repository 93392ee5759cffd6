"""What memory a cell may use: one limit for all, or the ladder of limits of design=levels.

Touches nothing. What each key means is said in `conf/memory` and `conf/design/levels.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.errors import UsageError
from harness.typed import in_range, ranged

MAX_LIMIT_MB = 2**30
# the most that --ram-budget-mb takes, which levels become
MAX_LEVEL_MB = 2**24
MAX_SHARE = 100
LADDER = ("levels", "levels_mb")
_RANGES = {"levels": ranged(above=0, high=MAX_SHARE), "levels_mb": ranged(1, MAX_LEVEL_MB)}
# how it was said once, and what to say now
OPTIONS_ONCE = {
    "levels": "the ladder is the design's: design=levels, with design.levels or design.levels_mb",
    "cap": "memory.limit_mb=N alone limits each cell to N MiB, memory=half by the model's size",
}
KEYS_ONCE = {f"memory.{name}": f"design.{name}" for name in LADDER}


@dataclass(frozen=True)
class MemoryConfig:
    """One limit for all cells, in MiB or by the size of the model's file; none of a ladder."""

    limit_mb: int | None = field(metadata=ranged(1, MAX_LIMIT_MB))
    # null: as the design has it
    cgroup: Literal["off", "wanted", "required"] | None
    cgroup_headroom_mb: int = field(metadata=ranged(0, MAX_LIMIT_MB))
    limit_share: float | None = field(default=None, metadata=ranged(above=0, high=MAX_SHARE))
    limit_beside_mb: int = field(default=0, metadata=ranged(0, MAX_LIMIT_MB))

    @property
    def limits(self) -> bool:
        return self.limit_mb is not None or self.limit_share is not None


def check_moved(data: Mapping[str, Any]) -> None:
    """Refuse keys of `memory` that are the design's now; they may stand in a file of one's own."""
    memory = data.get("memory")
    if not isinstance(memory, Mapping):
        return
    for name in LADDER:
        if name in memory:
            raise UsageError(f"memory.{name}: is design.{name} now, as the ladder is the design's")


def check_memory(
    memory: MemoryConfig, kind: str, ladder: Mapping[str, Any], capped: Mapping[str, bool]
) -> None:
    """UsageError for what cannot act together.

    `ladder`: the design's `levels` and `levels_mb`; `capped`: of each cell.
    """
    if memory.limit_mb is not None and memory.limit_share is not None:
        raise UsageError(
            "memory.limit_mb: excludes memory.limit_share; set one of them to null "
            "(memory=uncapped memory.limit_mb=N)"
        )
    given = [name for name in LADDER if ladder[name] is not None]
    if kind == "levels":
        _check_levels(memory, given, ladder)
        if not any(capped.values()):
            raise UsageError("cells: none is capped, so none would run at the levels of `design`")
        return
    if given:
        raise UsageError(
            f"design.{given[0]}: only design=levels runs cells at several levels; "
            "set it to null, or use design=levels"
        )
    if memory.cgroup not in (None, "off") and not memory.limits:
        raise UsageError(
            f"memory.cgroup: {memory.cgroup} has no limit to enforce; set memory.limit_mb, or off"
        )
    for name, is_capped in capped.items():
        if not is_capped and not memory.limits:
            raise UsageError(f"cells.{name}.capped: false where `memory` limits nothing; use true")


def _check_levels(memory: MemoryConfig, given: list[str], ladder: Mapping[str, Any]) -> None:
    if memory.limits:
        name = "limit_share" if memory.limit_mb is None else "limit_mb"
        raise UsageError(
            f"memory.{name}: excludes design=levels, whose ladder limits the cells; "
            f"use memory=uncapped, or set memory.{name} to null"
        )
    if not given:
        raise UsageError(
            "design.levels: null; a ladder needs its limits there (shares of the model's file) or "
            "in design.levels_mb"
        )
    if len(given) > 1:
        raise UsageError("design.levels_mb: excludes design.levels; set one of them to null")
    (name,) = given
    _check_ladder(f"design.{name}", ladder[name], _RANGES[name])


def _check_ladder(key: str, levels: tuple[float, ...], limits: Mapping[str, float | None]) -> None:
    if not levels:
        raise UsageError(f"{key}: empty; give at least one level")
    # as they become parts of cells' names
    names = [str(level) if isinstance(level, int) else f"{level:g}" for level in levels]
    for i, (level, name) in enumerate(zip(levels, names, strict=True)):
        in_range(level, limits, key)
        if name in names[:i]:
            raise UsageError(f"{key}: {name} stands there twice")


def as_said_now(stored: Any) -> Any:
    """The configuration of an earlier campaign as it is written now, so that it can go on.

    The ladder was part of `memory` once, and which cgroup a design has stood there.
    """
    memory = stored.get("memory") if isinstance(stored, Mapping) else None
    design = stored.get("design") if isinstance(stored, Mapping) else None
    if not isinstance(memory, Mapping) or not isinstance(design, Mapping):
        return stored
    if not any(name in memory for name in LADDER):
        return stored
    of_levels = design.get("kind") == "levels"
    kept = {key: value for key, value in memory.items() if key not in LADDER}
    if kept.get("cgroup") == ("wanted" if of_levels else "off"):
        kept["cgroup"] = None
    ladder = {name: memory.get(name) for name in LADDER} if of_levels else {}
    return {**stored, "memory": kept, "design": {**design, **ladder}}
