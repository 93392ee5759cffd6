"""What was measured of a cell, as plain data that crosses rooms. Touches nothing.

What was asked for: `planned`. What the device showed: `readings`. What is concluded from it:
`verdicts`, `findings`.

Everything here round-trips through JSON (`harness.jsonable`). `None` means *not measured*,
never zero. Units are in the names: `_ms` milliseconds, `_s` seconds, `_bytes` bytes,
`_pct` percent, `_c` degrees Celsius.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from harness.planned import GivenBinary, MemoryLevel, Role
from harness.readings import DeviceState, Excursion, GateOutcome, Peaks, Probes

CellStatus = Literal["ok", "failed", "refused", "killed"]


@dataclass(frozen=True)
class Counters:
    """What the engine did over the whole run (prefill and decode), independent of speed.

    None also where the mechanism was not armed: no speculation, no dropping.
    """

    tokens: int | None = None
    read_bytes: int | None = None  # speculative reads included
    hits: int | None = None
    misses: int | None = None
    evictions: int | None = None
    requests: int | None = None
    # by whether the expert had been used in the same decode, and its layer reached already
    evict_stale_left: int | None = None
    evict_stale_right: int | None = None
    evict_current_left: int | None = None
    evict_current_right: int | None = None
    spec_read_bytes: int | None = None
    spec_experts: int | None = None  # speculative reads that entered the cache
    spec_useful: int | None = None  # of those, needed later
    retained: int | None = None  # predicted residents that were moved to most recently used
    routed: int | None = None  # routed experts that the dropper examined
    dropped: int | None = None


@dataclass(frozen=True)
class Metrics:
    """What the cell's speed and memory were. Rates are of decoding unless named otherwise."""

    tok_s: float | None = None  # tokens / sum of wall_ms
    wall_ms_median: float | None = None
    hit_rate: float | None = None  # hits / requests, decode
    hit_rate_total: float | None = None  # hits / requests, prefill included
    bytes_per_token: float | None = None  # decode read_bytes / tokens
    spec_bytes_per_token: float | None = None  # of those, read on speculation
    spec_useful_share: float | None = None  # spec_useful / spec_experts
    dropped_share: float | None = None  # dropped / routed
    nll: float | None = None  # of a given text: mean negative log-likelihood, nats per token
    agreement: float | None = None  # share of its tokens that the model would have chosen itself
    prefill_tok_s: float | None = None
    load_s: float | None = None
    anon_peak_bytes: int | None = None
    rss_peak_bytes: int | None = None
    anon_within_limit: bool | None = None
    majflt_per_token: float | None = None
    stall_ms_per_token: float | None = None
    invol_ctx_per_token: float | None = None
    sampler_cpu_share: float | None = None
    # of the cell's wall time, all of one core being 1 (the launcher, while the engine ran)
    cpu_wait_share: float | None = None  # the engine's threads were ready and waited for a core
    cpu_throttled_share: float | None = None  # a CPU quota held the engine's cgroup back
    neighbour_cpu_share: float | None = None  # used by other processes, summed over all cores
    steal_cpu_share: float | None = None  # taken by the hypervisor, summed over all cores

    @property
    def given_perplexity(self) -> float | None:
        """exp(nll) of a given text; None also where it is beyond all numbers.

        Not that of a scored text (`Perplexity`), of whose chunks only the second halves count.
        """
        try:
            return None if self.nll is None else math.exp(self.nll)
        except OverflowError:
            return None


@dataclass(frozen=True)
class Wait:
    """The pause before a cell: how long it really was and why; `gates`: what it also waited for."""

    seconds: float
    reason: str
    gates: tuple[GateOutcome, ...] = ()


@dataclass(frozen=True)
class TargetId:
    kind: str
    name: str


@dataclass(frozen=True)
class ArmIdentity:
    """What makes two cells the same arm; None where the engine did not say."""

    model_sha256: str | None = None
    engine_build_id: str | None = None  # as it says itself
    engine_sha256: str | None = None  # of the file that ran; None: not recorded
    mode: str | None = None
    cache_mb: int | None = None
    ram_budget_mb: int | None = None
    evict: str | None = None
    arena_bytes: int | None = None
    capacity_bytes: int | None = None  # the cache's budget as the engine resolved it
    direct_io: bool | None = None
    dense_weights: str | None = None
    expert_used: int | None = None
    threads: int | None = None
    text_sha256: str | None = None  # of the text that was given, or scored
    prompt_sha256: str | None = None  # None also where nothing was to be decoded
    # what other engines leave behind instead of hashes (imported cells)
    model: str | None = None  # as the engine named its file
    prompt_tokens: int | None = None


@dataclass(frozen=True)
class SlotClass:
    """Slots of one size; `experts`: how many of the model are of this size."""

    slot_bytes: int
    slots: int
    experts: int


@dataclass(frozen=True)
class Arena:
    """The engine's expert cache. `coverage`: share of all routed bytes that it holds at once."""

    bytes: int | None = None
    slots: int | None = None
    coverage: float | None = None
    classes: tuple[SlotClass, ...] = ()  # smallest first


@dataclass(frozen=True)
class RamBudget:
    """A bound on all anonymous memory, and what of it is not arena: set aside, and measured."""

    ram_budget_bytes: int
    reserve_bytes: int
    reserve_measured_bytes: int


@dataclass(frozen=True)
class Perplexity:
    """Of a text, scored in chunks of `n_ctx` tokens; `nll` in nats per scored token.

    `stderr`: of `value`; None where a single token was scored.
    """

    value: float
    nll: float
    tokens: int
    chunks: int
    n_ctx: int
    stderr: float | None


@dataclass(frozen=True)
class PredictorScore:
    """One predictor against the router, over the whole session: routings met, slots met."""

    routings: int
    exact: int  # routings of which every expert was named
    slots: int
    slots_hit: int


@dataclass(frozen=True)
class LayerScores:
    """Slot overlap by predictor at one layer; None where nothing was scored."""

    layer: int
    routings: int
    stale_gate: float | None = None
    stale_gate_2: float | None = None
    previous_token: float | None = None
    control: float | None = None


@dataclass(frozen=True)
class Prediction:
    """What `--predict-log` found; `control` is the router's own rows and so shows the method."""

    predictors: dict[str, PredictorScore]
    unscored_routings: int
    layers: tuple[LayerScores, ...] = ()


@dataclass(frozen=True)
class PredictorDisarmed:
    """The engine's watchdog switched its predictor off: the control failed."""

    after_slots: int
    control: float


@dataclass(frozen=True)
class ForcedRoutes:
    """The routing was taken from a recorded trace; `exact`: of a model with as many experts."""

    path: str
    layers: int
    experts: int
    top_k: int
    exact: bool


@dataclass(frozen=True)
class CgroupMemory:
    """The cell's memory cgroup (docs/launcher.md); None where the kernel does not say.

    `limit_bytes` is what the kernel answered; None, with the `reason`, where no limit was in force.
    `peak_bytes` includes page cache, so under a limit it says little of need.
    """

    limit_bytes: int | None = None
    swap_limited: bool | None = None  # False: memory beyond the limit may have gone to swap
    peak_bytes: int | None = None
    failcnt: int | None = None  # how often the limit was met
    oom_kills: int | None = None  # processes of the cell
    oom_killed: bool | None = None  # the engine itself was among them
    uncharged_bytes: int | None = None  # at least so much was in the page cache before the cell
    reason: str | None = None


@dataclass(frozen=True)
class CellRecord:
    """One cell as measured; `record.json` is exactly this.

    `notes`: what is to be known of the record itself, whatever its status: a place in the order
    that is a guess, a summary that its rows do not bear out.
    """

    cell: str
    arm: str
    role: Role
    index: int
    status: CellStatus
    exit_code: int | None
    argv: tuple[str, ...]
    target: TargetId
    entry: DeviceState | None = None
    exit: DeviceState | None = None
    probe: Probes = field(default_factory=Probes)
    counters: Counters = field(default_factory=Counters)
    metrics: Metrics = field(default_factory=Metrics)
    identity: ArmIdentity = field(default_factory=ArmIdentity)
    level: MemoryLevel | None = None
    binary: GivenBinary | None = None  # as asked for; None: the campaign's engine
    arena: Arena | None = None
    budget: RamBudget | None = None
    perplexity: Perplexity | None = None  # None also where the cell decoded
    prediction: Prediction | None = None
    predictor_disarmed: PredictorDisarmed | None = None
    forced_routes: ForcedRoutes | None = None
    output_sha256: str | None = None
    wait: Wait | None = None
    started_unix_s: float | None = None
    ended_unix_s: float | None = None
    data_limit_bytes: int | None = None
    cgroup: CgroupMemory | None = None  # None: not asked for, or the launcher left no result
    status_detail: str | None = None
    peaks: Peaks = field(default_factory=Peaks)
    excursions: tuple[Excursion, ...] | None = None  # None: nothing was watched, or could be
    notes: tuple[str, ...] = ()

    @property
    def is_result(self) -> bool:
        """It ran to its end, or was refused where a ladder of limits asks where that happens."""
        return self.status == "ok" or (self.status == "refused" and self.level is not None)
