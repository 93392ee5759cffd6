"""Plain data that crosses rooms: what a campaign plans, measures and concludes. Touches nothing.

Everything here round-trips through JSON (`to_json`, `from_json`). `None` means *not measured*,
never zero. Units are in the names: `_ms` milliseconds, `_s` seconds, `_bytes` bytes,
`_pct` percent, `_c` degrees Celsius.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

T = TypeVar("T")

Role = Literal["baseline", "candidate", "sentinel"]
CellStatus = Literal["ok", "failed", "refused", "killed"]
DriftVerdict = Literal["stable", "drifting", "throttled", "not_comparable", "unknown"]
Outcome = Literal[
    "win",
    "loss",
    "equivalent",
    "inconclusive",
    "contaminated",
    "confounded",
    "provisional_win",
    "provisional_loss",
    "unreadable",
]


# --- what is asked for ---------------------------------------------------------------------------


@dataclass(frozen=True)
class EngineSettings:
    """Resolved settings of one arm, as passed to `moe-engine`. None: the flag is not passed."""

    threads: int
    n_ctx: int
    n_batch: int
    moe_stream: bool = False
    cache_mb: int | None = None
    io_threads: int | None = None
    direct_io: bool | None = None
    dense_weights: str | None = None
    expert_used: int | None = None
    repack: bool = False
    no_eog: bool = True


@dataclass(frozen=True)
class Arm:
    """One engine configuration under comparison; two cells of one arm must do equal work."""

    name: str
    engine: EngineSettings
    prompt: str
    n_predict: int
    seed: int = 0
    data_limit_bytes: int | None = None  # RLIMIT_DATA of the engine process
    time_limit_s: float = 3600.0


@dataclass(frozen=True)
class PlannedCell:
    """One run of one arm: its place in the order, its role, the pause before it (seconds)."""

    index: int
    name: str
    arm: str
    role: Role
    wait_s: float


@dataclass(frozen=True)
class Plan:
    """An ordered campaign: `design` names the verdict that reads it."""

    design: str
    arms: dict[str, Arm]
    cells: tuple[PlannedCell, ...]
    baseline: str
    candidates: tuple[str, ...]


# --- what is measured ----------------------------------------------------------------------------


@dataclass(frozen=True)
class CpufreqState:
    policy: str
    cpus: str | None = None
    scaling_max_khz: int | None = None
    scaling_cur_khz: int | None = None
    cpuinfo_max_khz: int | None = None
    governor: str | None = None


@dataclass(frozen=True)
class ThermalState:
    zone: str
    type: str | None = None
    temp_c: float | None = None


@dataclass(frozen=True)
class BatteryState:
    temp_c: float | None = None
    capacity_pct: float | None = None
    status: str | None = None
    current_ua: int | None = None


@dataclass(frozen=True)
class PsiState:
    cpu_some_avg10: float | None = None
    memory_some_avg10: float | None = None
    io_some_avg10: float | None = None


@dataclass(frozen=True)
class DeviceState:
    """What the device looked like at one moment (launcher `state`)."""

    unix_s: float | None = None
    mem_total_bytes: int | None = None
    mem_available_bytes: int | None = None
    swap_free_bytes: int | None = None
    load_1m: float | None = None
    cpu_busy_share: float | None = None
    cpufreq: tuple[CpufreqState, ...] = ()
    thermal: tuple[ThermalState, ...] = ()
    battery: BatteryState | None = None
    psi: PsiState | None = None


@dataclass(frozen=True)
class ProbeResult:
    """The calibrated probe: fixed compute and fixed direct reads.

    `compute_ms` and `read_ms` are medians of wall time and so feel a busy neighbour as the engine
    does; `compute_cpu_ms` is the median of CPU time and feels the clock of the core alone.
    """

    compute_ms: float | None = None
    compute_cpu_ms: float | None = None
    compute_min_ms: float | None = None
    compute_reps: int | None = None
    read_ms: float | None = None
    read_min_ms: float | None = None
    read_reps: int | None = None
    read_bytes: int | None = None
    read_direct: bool | None = None
    wall_s: float | None = None


@dataclass(frozen=True)
class Probes:
    before: ProbeResult | None = None
    after: ProbeResult | None = None


@dataclass(frozen=True)
class Counters:
    """What the engine did over the whole run (prefill and decode), independent of speed."""

    tokens: int | None = None
    read_bytes: int | None = None
    hits: int | None = None
    misses: int | None = None
    evictions: int | None = None
    requests: int | None = None
    dropped: int | None = None


@dataclass(frozen=True)
class Metrics:
    """What the cell's speed and memory were. Rates are of decoding unless named otherwise."""

    tok_s: float | None = None  # tokens / sum of wall_ms
    wall_ms_median: float | None = None
    hit_rate: float | None = None  # hits / requests, decode
    hit_rate_total: float | None = None  # hits / requests, prefill included
    bytes_per_token: float | None = None  # decode read_bytes / tokens
    prefill_tok_s: float | None = None
    load_s: float | None = None
    anon_peak_bytes: int | None = None
    rss_peak_bytes: int | None = None
    anon_within_limit: bool | None = None
    majflt_per_token: float | None = None
    stall_ms_per_token: float | None = None
    invol_ctx_per_token: float | None = None
    sampler_cpu_share: float | None = None


@dataclass(frozen=True)
class Wait:
    """The pause before a cell: how long it really was and why."""

    seconds: float
    reason: str


@dataclass(frozen=True)
class TargetId:
    kind: str
    name: str


@dataclass(frozen=True)
class ArmIdentity:
    """What makes two cells the same arm; None where the engine did not say."""

    model_sha256: str | None = None
    engine_build_id: str | None = None
    mode: str | None = None
    cache_mb: int | None = None
    arena_bytes: int | None = None
    direct_io: bool | None = None
    dense_weights: str | None = None
    expert_used: int | None = None
    threads: int | None = None


@dataclass(frozen=True)
class CellRecord:
    """One cell as measured; `record.json` is exactly this."""

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
    output_sha256: str | None = None
    wait: Wait | None = None
    started_unix_s: float | None = None
    ended_unix_s: float | None = None
    data_limit_bytes: int | None = None
    status_detail: str | None = None


# --- what is concluded ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Drift:
    """Change of device speed between the opening and the closing baseline cell."""

    verdict: DriftVerdict
    sentinel_change_pct: float | None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class CandidateVerdict:
    """`effect_pct`: change of tok/s of the candidate against the baseline, in percent."""

    candidate: str
    baseline: str
    outcome: Outcome
    effect_pct: float | None = None
    ci_pct: tuple[float, float] | None = None
    typical_token_effect_pct: float | None = None
    p: float | None = None
    clean_pairs: int | None = None
    cells_used: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class CampaignVerdict:
    """`verdict.json` is exactly this."""

    campaign: str
    drift: Drift
    verdicts: tuple[CandidateVerdict, ...]


# --- JSON ----------------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """Dataclasses, tuples and dicts to plain JSON types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    return value


def from_json(cls: type[T], data: Any, where: str = "") -> T:
    """Plain JSON to the dataclass `cls`; unknown keys are ignored, so old readers read new records.

    Raises ValueError naming the key that is missing or of the wrong type.
    """
    return typing.cast(T, _decode(cls, data, where or cls.__name__))


def _decode(hint: Any, data: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if data is None:
            return None
        (inner,) = [a for a in args if a is not type(None)]
        value = _decode(inner, data, where)
    elif origin is Literal:
        if data not in args:
            raise ValueError(f"{where}: {data!r} is none of {', '.join(map(str, args))}")
        value = data
    elif origin is tuple:
        value = _decode_tuple(args, data, where)
    elif origin is dict:
        if not isinstance(data, dict):
            raise ValueError(f"{where}: expected an object, found {type(data).__name__}")
        value = {k: _decode(args[1], v, f"{where}.{k}") for k, v in data.items()}
    elif dataclasses.is_dataclass(hint):
        value = _decode_dataclass(typing.cast(type, hint), data, where)
    else:
        value = _decode_scalar(hint, data, where)
    return value


def _decode_tuple(args: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(data, (list, tuple)):
        raise ValueError(f"{where}: expected a list, found {type(data).__name__}")
    if len(args) == 2 and args[1] is Ellipsis:
        args = (args[0],) * len(data)
    if len(args) != len(data):
        raise ValueError(f"{where}: expected {len(args)} items, found {len(data)}")
    return tuple(
        _decode(a, v, f"{where}[{i}]") for i, (a, v) in enumerate(zip(args, data, strict=True))
    )


def _decode_scalar(hint: Any, data: Any, where: str) -> Any:
    if hint is float and type(data) is int:
        return float(data)
    if type(data) is not hint:
        raise ValueError(f"{where}: expected {hint.__name__}, found {data!r}")
    return data


def _decode_dataclass(cls: type, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise ValueError(f"{where}: expected an object, found {type(data).__name__}")
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for f in dataclasses.fields(cls):
        if f.name in data:
            values[f.name] = _decode(hints[f.name], data[f.name], f"{where}.{f.name}")
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where}.{f.name}: missing")
    return cls(**values)
