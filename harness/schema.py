"""Typed configuration: the keys there are, and the type and range of each. Touches nothing.

Knows neither Hydra nor YAML. What a key *means* is said where it is defined, in `conf/`; here is
what it may be. Which settings can act together: `validation`. The engine's flags: `engine_flags`.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.build_config import USUAL_BUILD, BuildConfig
from harness.engine_flags import EngineFlags
from harness.memory_config import MemoryConfig
from harness.nightly_config import NO_NIGHT, NightlyConfig
from harness.session_config import NO_GATES, USUAL_SESSION, GateConfig, SessionConfig
from harness.tracking_config import TrackingConfig
from harness.typed import ranged

# planned by the design itself (sentinel_1 and so on within long sessions), so not for users' cells
SENTINEL = "sentinel"
# designs that compare candidates with a baseline, and of them those made of randomised blocks
COMPARING = ("four_cell", "pairs", "abba")
BLOCK_DESIGNS = ("pairs", "abba")


@dataclass(frozen=True)
class CellConfig:
    """`cell`, and each of `cells` once it is merged over `cell`."""

    prompt: str
    text: str | None
    perplexity: str | None
    perplexity_chunks: int | None = field(metadata=ranged(1, 2**31 - 1))
    n_predict: int = field(metadata=ranged(1))
    n_ctx: int = field(metadata=ranged(1))
    n_batch: int = field(metadata=ranged(1))
    seed: int = field(metadata=ranged(0))
    capped: bool
    time_limit_s: float = field(metadata=ranged(above=0, high=30 * 86400))
    engine: EngineFlags
    binary: str | None = None


@dataclass(frozen=True)
class EngineConfig:
    """Where the engine comes from."""

    binary: str | None
    launcher: str | None
    llama_cpp_dir: str | None
    cache_dir: str | None


@dataclass(frozen=True)
class ScheduleConfig:
    spacing_s: float = field(metadata=ranged(0))
    probe_s: float = field(metadata=ranged(0, 60))
    drop_page_cache: bool
    gate: GateConfig = NO_GATES


@dataclass(frozen=True)
class DesignConfig:
    kind: Literal["four_cell", "pairs", "abba", "survey", "levels"]
    baseline: str | None
    candidates: tuple[str, ...] | None
    # of pairs and abba; the other designs do without
    pairs: int | None = field(default=None, metadata=ranged(1, 10_000))
    seed: int | None = field(default=None, metadata=ranged(0, 2**63 - 1))
    stop_when_decided: bool | None = None
    # of levels: shares of the model's file, or MiB
    levels: tuple[float, ...] | None = None
    levels_mb: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ContaminatedConfig:
    """From where on a cell's timing is no longer its arm's."""

    step_pct: float = field(metadata=ranged(above=0, high=1000))
    cap_move_pct: float = field(metadata=ranged(0, 100))
    probe_move_pct: float = field(metadata=ranged(above=0, high=1000))
    slow_cell_pct: float = field(metadata=ranged(above=0, high=1000))
    majflt_time_pct: float = field(metadata=ranged(above=0, high=1000))
    cpu_throttled_pct: float = field(metadata=ranged(above=0, high=100_000))
    cpu_wait_pct: float = field(metadata=ranged(above=0, high=100_000))
    neighbour_cpu_pct: float = field(metadata=ranged(above=0, high=100_000))
    steal_cpu_pct: float = field(metadata=ranged(above=0, high=100_000))


@dataclass(frozen=True)
class VerdictConfig:
    stable_pct: float = field(metadata=ranged(above=0, high=100))
    temp_tolerance_c: float = field(metadata=ranged(0))
    probe_tolerance_pct: float = field(metadata=ranged(0, 100))
    read_probe_tolerance_pct: float = field(metadata=ranged(0, 100))
    margin_pct: float = field(metadata=ranged(above=0, high=50))
    contaminated: ContaminatedConfig


@dataclass(frozen=True)
class Config:
    """The whole configuration of one campaign."""

    name: str
    runs_dir: str
    resume: str | None
    plan_only: bool
    cell: CellConfig
    cells: dict[str, CellConfig]
    memory: MemoryConfig
    engine: EngineConfig
    model: dict[str, Any]  # checked by the room that knows models
    target: dict[str, Any]  # by its kind: `target_config`
    schedule: ScheduleConfig
    design: DesignConfig
    verdict: VerdictConfig
    tracking: TrackingConfig
    session: SessionConfig = USUAL_SESSION
    build: BuildConfig = USUAL_BUILD
    nightly: NightlyConfig = NO_NIGHT


def candidates_of(config: Config) -> tuple[str, ...]:
    """The candidates in order: those named, or every cell but the baseline."""
    named = config.design.candidates
    if named is not None:
        return named
    return tuple(name for name in config.cells if name != config.design.baseline)


def known_keys(cls: type = Config, prefix: str = "") -> list[str]:
    """Every key of the configuration with dots, for suggestions; open mappings end in `.`."""
    keys: list[str] = []
    hints = typing.get_type_hints(cls)
    for f in dataclasses.fields(cls):
        hint, name = hints[f.name], prefix + f.name
        if dataclasses.is_dataclass(hint):
            keys += [name, *known_keys(typing.cast(type, hint), name + ".")]
        else:
            keys.append(name)
    return keys
