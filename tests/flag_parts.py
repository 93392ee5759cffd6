"""Settings of the engine to combine: every pair of them is put to the harness and to the engine."""

from __future__ import annotations

import itertools
from typing import Any

from harness.planned import EngineSettings

# one thing to ask for each, on top of streaming with a cache of 8 MiB
CHOICES: dict[str, dict[str, Any]] = {
    "no cache": {"cache_mb": 0},
    "auto": {"cache_mb": "auto"},
    "floor": {"cache_floor_mb": 64},
    "ceiling": {"cache_ceil_mb": 64},
    "budget": {"ram_budget_mb": 64, "cache_mb": None},
    "reserve": {"reserve_mb": 64},
    "evict": {"evict": "ls"},
    "stats": {"stats": True},
    "force": {"force_cache": True},
    "load all": {"load_all": True},
    "overlap": {"overlap": True},
    "lanes": {"io_threads": 3},
    "buffered": {"direct_io": False},
    "warm": {"dense_weights": "warm"},
    "prefetch": {"prefetch": 1},
    "predict": {"predict_prefetch": True},
    "most": {"predict_spec_max": 0},
    "horizon": {"predict_horizon": 1},
    "log": {"predict_log": True},
    "drop": {"drop_cold_experts": 0.0},
    "no renorm": {"drop_renorm": False},
    "in prefill": {"drop_in_prefill": True},
    "route trace": {"route_trace": True},
    "io trace": {"io_trace": True},
    "compute trace": {"compute_trace": "layer"},
    "forced": {"forced_routes": "/routes.csv"},
    "top-k": {"expert_used": 1},
    "repack": {"repack": True},
}
PAIRS = [
    (a, b)
    for a, b in itertools.combinations(CHOICES, 2)
    if not CHOICES[a].keys() & CHOICES[b].keys()
]


def settings_of(*chosen: str) -> dict[str, Any]:
    base = EngineSettings(threads=1, n_ctx=64, n_batch=16, moe_stream=True, cache_mb=8)
    merged = dict(vars(base))
    for name in chosen:
        merged |= CHOICES[name]
    return merged
