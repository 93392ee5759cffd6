"""The engine's flags as a configuration asks for them, and which of them can act together.

Touches nothing. The same rules hold for `cell.engine` and for the resolved settings of an arm; the
engine refuses what they refuse (docs/engine.md). What a flag *does* is said in `conf/config.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from harness.typed import ranged, say

EvictionPolicy = Literal["lru", "ls", "ls_pos", "lfu", "layer", "reuse_distance"]
EVICTION_POLICIES: tuple[str, ...] = get_args(EvictionPolicy)


@dataclass(frozen=True)
class EngineFlags:
    """`cell.engine`; None leaves a flag out, for false it is not given."""

    threads: int | None = field(metadata=ranged(1, 1024))
    moe_stream: bool
    overlap: bool
    cache_mb: int | Literal["auto"] | None = field(metadata=ranged(0))
    cache_fraction: float | None = field(metadata=ranged(0, 1))
    cache_floor_mb: int | None = field(metadata=ranged(0))
    cache_ceil_mb: int | None = field(metadata=ranged(0))
    ram_budget_mb: int | None = field(metadata=ranged(1))
    reserve_mb: int | None = field(metadata=ranged(0))
    evict: EvictionPolicy | None
    force_cache: bool
    load_all: bool
    io_threads: int | None = field(metadata=ranged(1, 16))
    direct_io: bool | None
    dense_weights: Literal["mmap", "warm", "anon"] | None
    prefetch: int | None = field(metadata=ranged(0, 8))
    predict_prefetch: bool
    predict_spec_max: int | None = field(metadata=ranged(0, 8))
    predict_horizon: int | None = field(metadata=ranged(1, 2))
    predict_log: bool
    drop_cold_experts: float | None = field(metadata=ranged(0, 1))
    drop_renorm: bool
    drop_in_prefill: bool
    route_trace: bool
    io_trace: bool
    compute_trace: Literal["node", "layer"] | None
    stats: bool
    forced_routes: str | None
    expert_used: int | None = field(metadata=ranged(1))
    repack: bool
    no_eog: bool


@dataclass(frozen=True)
class Conflict:
    """The setting that cannot act, and in words why not and what to do."""

    name: str
    words: str


# what says nothing to the engine, where that is not null or false
_SILENT: dict[str, tuple[Any, ...]] = {
    "direct_io": (None,),
    "dense_weights": (None, "mmap"),
    "drop_renorm": (None, True),
}
_STREAM_ONLY = (
    "overlap",
    "cache_mb",
    "cache_fraction",
    "cache_floor_mb",
    "cache_ceil_mb",
    "ram_budget_mb",
    "reserve_mb",
    "evict",
    "force_cache",
    "load_all",
    "io_threads",
    "direct_io",
    "dense_weights",
    "prefetch",
    "predict_prefetch",
    "predict_spec_max",
    "predict_horizon",
    "predict_log",
    "drop_cold_experts",
    "drop_renorm",
    "drop_in_prefill",
    "route_trace",
    "io_trace",
    "compute_trace",
    "stats",
    "forced_routes",
)
_NEED_A_CACHE = ("evict", "force_cache", "prefetch", "predict_prefetch", "drop_cold_experts")
_NEED_ANOTHER = (
    ("reserve_mb", "ram_budget_mb"),
    ("predict_spec_max", "predict_prefetch"),
    ("predict_horizon", "predict_prefetch"),
    ("drop_renorm", "drop_cold_experts"),
    ("drop_in_prefill", "drop_cold_experts"),
)
_EXCLUDE_EACH_OTHER = (
    ("cache_mb", "cache_fraction"),
    # the cache is what the budget leaves
    ("ram_budget_mb", "cache_mb"),
    ("ram_budget_mb", "cache_fraction"),
    ("ram_budget_mb", "force_cache"),
    ("ram_budget_mb", "load_all"),
    ("ram_budget_mb", "forced_routes"),
    ("repack", "moe_stream"),
    ("load_all", "overlap"),
    ("prefetch", "predict_prefetch"),
    # the router's choice is overridden: there is nothing to predict
    ("forced_routes", "predict_prefetch"),
    ("forced_routes", "predict_log"),
)


def asked(settings: Mapping[str, Any], name: str) -> bool:
    """The setting is given to the engine, or changes what is given."""
    value = settings.get(name)
    # by type too: 0 is a value, and equals False
    return not any(type(value) is type(s) and value == s for s in _silent(name))


def acts(settings: Mapping[str, Any], name: str) -> bool:
    """As `asked`, but for prefetch 0: it reads nothing ahead."""
    return asked(settings, name) and not (name == "prefetch" and settings[name] == 0)


def has_cache(settings: Mapping[str, Any]) -> bool:
    """Experts stay resident between calls."""
    sizes = ("cache_mb", "cache_fraction", "ram_budget_mb")
    return any(settings.get(name) for name in sizes)


def conflict(settings: Mapping[str, Any]) -> Conflict | None:
    """The first setting that cannot act in this combination, None when all can."""
    return next(_conflicts(settings), None)


def excluding(settings: Mapping[str, Any], name: str) -> str | None:
    """The first setting that acts and cannot beside `name`."""
    partners = [b if a == name else a for a, b in _EXCLUDE_EACH_OTHER if name in (a, b)]
    return next((other for other in partners if acts(settings, other)), None)


def _silent(name: str) -> tuple[Any, ...]:
    return _SILENT.get(name, (None, False))


def off(name: str, value: Any) -> str:
    """What to write so that the setting is not asked for."""
    return say(next((s for s in _silent(name) if type(s) is type(value)), None))


def _conflicts(s: Mapping[str, Any]) -> Iterator[Conflict]:
    if not s["moe_stream"]:
        for name in _STREAM_ONLY:
            if asked(s, name):
                yield Conflict(
                    name,
                    f"{say(s[name])} cannot act without moe_stream; set it to "
                    f"{off(name, s[name])}, or moe_stream to true",
                )
    for a, b in _EXCLUDE_EACH_OTHER:
        if acts(s, a) and acts(s, b):
            yield Conflict(
                a,
                f"{a}={say(s[a])} and {b}={say(s[b])} exclude each other; "
                f"set {a} to {off(a, s[a])} or {b} to {off(b, s[b])}",
            )
    for name, other in _NEED_ANOTHER:
        if asked(s, name) and not asked(s, other):
            yield Conflict(name, f"{say(s[name])} cannot act without {other}; set {other} too")
    yield from _cache_conflicts(s)


def _cache_conflicts(s: Mapping[str, Any]) -> Iterator[Conflict]:
    for name in ("cache_floor_mb", "cache_ceil_mb"):
        if asked(s, name) and s["cache_mb"] != "auto":
            yield Conflict(name, f"{s[name]} bounds an automatic cache only; set cache_mb to auto")
    if asked(s, "forced_routes") and (s["cache_mb"] == "auto" or asked(s, "cache_fraction")):
        yield Conflict(
            "forced_routes",
            "the cache counts the experts of the trace's model, so this one's say nothing of its "
            "size; give cache_mb in MiB, and cache_fraction as null",
        )
    if s["force_cache"] and s["cache_mb"] == "auto":
        yield Conflict("force_cache", "cannot act with cache_mb=auto; give the size, or use false")
    for name in _NEED_A_CACHE:
        if acts(s, name) and not has_cache(s):
            yield Conflict(
                name, f"{say(s[name])} needs a cache; set cache_fraction, or cache_mb above 0"
            )
    if s["load_all"] and has_cache(s):
        yield Conflict("load_all", "reads every expert at each use; set cache_mb to 0")
