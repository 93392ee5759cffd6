"""What a campaign is asked to run, as data: arms, and cells in their order. Touches nothing.

Made by `plan`; round-trips through JSON (`jsonable`). Units are in the names, as in `records`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["baseline", "candidate", "sentinel"]
CgroupMode = Literal["wanted", "required"]


@dataclass(frozen=True)
class EngineSettings:
    """Resolved settings of one arm, as passed to `moe-engine`. None: the flag is not passed."""

    threads: int
    n_ctx: int
    n_batch: int
    moe_stream: bool = False
    overlap: bool = False
    cache_mb: int | Literal["auto"] | None = None
    cache_floor_mb: int | None = None
    cache_ceil_mb: int | None = None
    ram_budget_mb: int | None = None
    reserve_mb: int | None = None
    evict: str | None = None
    force_cache: bool = False
    load_all: bool = False
    io_threads: int | None = None
    direct_io: bool | None = None
    dense_weights: str | None = None
    prefetch: int | None = None
    predict_prefetch: bool = False
    predict_spec_max: int | None = None
    predict_horizon: int | None = None
    predict_log: bool = False
    drop_cold_experts: float | None = None
    drop_renorm: bool = True
    drop_in_prefill: bool = False
    route_trace: bool = False
    io_trace: bool = False
    compute_trace: str | None = None
    stats: bool = False
    forced_routes: str | None = None
    expert_used: int | None = None
    repack: bool = False
    no_eog: bool = True


@dataclass(frozen=True)
class GivenText:
    """A text that is decoded instead of the model's own choices, or scored."""

    path: str
    sha256: str


@dataclass(frozen=True)
class GivenBinary:
    """An engine that was asked for by name instead of the campaign's; `path`: on this machine."""

    path: str
    sha256: str


@dataclass(frozen=True)
class MemoryLevel:
    """One rung of a ladder of memory limits, and the configured cell that is run at it."""

    cell: str
    limit_mb: int | None  # None in a plan whose model is not made yet
    fraction: float | None = None  # of the model's file, where the ladder was given so

    @property
    def name(self) -> str:
        """As the ladder was given: a share of the model, or MiB."""
        return f"{self.limit_mb}MiB" if self.fraction is None else f"{self.fraction:g}"


@dataclass(frozen=True)
class Arm:
    """One engine configuration under comparison; two cells of one arm must do equal work."""

    name: str
    engine: EngineSettings
    prompt: str
    n_predict: int
    text: GivenText | None = None  # None: greedy
    perplexity: GivenText | None = None  # scored instead of decoding
    perplexity_chunks: int | None = None  # None: all of it
    seed: int = 0
    data_limit_bytes: int | None = None  # RLIMIT_DATA of the engine process
    cgroup_limit_bytes: int | None = None  # of all its memory, page cache included
    cgroup_mode: CgroupMode = "wanted"  # required: the cell is not run where it cannot be had
    level: MemoryLevel | None = None  # the limits are those of a ladder
    limit_share: float | None = None  # of the model's file, where data_limit_bytes was given so
    time_limit_s: float = 3600.0
    binary: GivenBinary | None = None  # None: the campaign's engine

    @property
    def cell(self) -> str:
        """The configured cell that it is made from."""
        return self.name if self.level is None else self.level.cell


@dataclass(frozen=True)
class PlannedCell:
    """One run of one arm: its place in the order, its role, the pause before it (seconds).

    `block`: from 0, the smallest group of cells that yields one paired estimate; None in designs
    without blocks.
    """

    index: int
    name: str
    arm: str
    role: Role
    wait_s: float
    block: int | None = None


@dataclass(frozen=True)
class Coins:
    """How the order inside every block was drawn, before the first cell: `orders`, by block, are
    the arms in the order drawn (an `abba` block then runs them forth and back).

    `seed`: of `random.Random`, from which the same orders come again.
    """

    seed: int
    orders: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Plan:
    """An ordered campaign: `design` names the verdict that reads it.

    `arms`: empty where the settings are not known (an imported campaign). `baseline`: None where
    nothing is compared. `coins`: None where no order was drawn, or it is not known how.
    """

    design: str
    arms: dict[str, Arm]
    cells: tuple[PlannedCell, ...]
    baseline: str | None
    candidates: tuple[str, ...]
    coins: Coins | None = None
