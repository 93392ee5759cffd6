"""The metrics that can be gated: which direction is worse, what it takes to compare them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.errors import UsageError
from harness.records import CellRecord
from harness.typed import nearest

Kind = Literal["time", "memory", "work", "result"]


@dataclass(frozen=True)
class Metric:
    """`time`: the device's day is in it. `memory`: it varies, but not with the device's speed.

    `work`: what the engine did; equal runs must do the same, unless it depends on timing.
    `result`: of what it computed; that depends on timing only where experts are dropped as well.
    """

    name: str
    higher_is_better: bool
    kind: Kind
    unit: str = ""

    def of(self, record: CellRecord) -> float | None:
        """Its value in a cell, None where it was not measured."""
        if self.name == "perplexity":
            return None if record.perplexity is None else record.perplexity.value
        value = getattr(record.metrics, self.name)
        if value is None or not math.isfinite(value):
            return None
        return float(value)

    @property
    def worse(self) -> str:
        return "lower" if self.higher_is_better else "higher"


METRICS = {
    m.name: m
    for m in (
        Metric("tok_s", True, "time", "tok/s"),
        Metric("wall_ms_median", False, "time", "ms"),
        Metric("prefill_tok_s", True, "time", "tok/s"),
        Metric("load_s", False, "time", "s"),
        Metric("stall_ms_per_token", False, "time", "ms"),
        Metric("majflt_per_token", False, "time", "faults"),
        Metric("anon_peak_bytes", False, "memory", "bytes"),
        Metric("rss_peak_bytes", False, "memory", "bytes"),
        Metric("anon_within_limit", True, "memory"),
        Metric("hit_rate", True, "work"),
        Metric("hit_rate_total", True, "work"),
        Metric("bytes_per_token", False, "work", "bytes"),
        Metric("spec_bytes_per_token", False, "work", "bytes"),
        Metric("spec_useful_share", True, "work"),
        Metric("dropped_share", False, "work"),
        Metric("nll", False, "result", "nats"),
        Metric("given_perplexity", False, "result"),
        Metric("agreement", True, "result"),
        Metric("perplexity", False, "result"),
    )
}
# of `records.Metrics`, what tells of the device and the harness and not of the engine
OF_THE_SURROUNDINGS = (
    *("invol_ctx_per_token", "sampler_cpu_share", "cpu_wait_share", "cpu_throttled_share"),
    *("neighbour_cpu_share", "steal_cpu_share"),
)


def metrics_named(names: Sequence[str]) -> tuple[Metric, ...]:
    """In the order given, each once. Raises UsageError with the nearest names."""
    found = {}
    for name in names:
        if name in OF_THE_SURROUNDINGS:
            raise UsageError(
                f"--metric {name}: tells what else the device did, not what the engine did; "
                "it is among what makes a cell contaminated"
            )
        if name not in METRICS:
            raise UsageError(f"--metric {name}: no such metric{nearest(name, METRICS, 'metrics')}")
        found[name] = METRICS[name]
    return tuple(found.values())
