"""A cell as a tracking store takes it: parameters, metrics by token, and what they are called.

Knows no store, touches nothing.

MLflow sorts names, and makes a section of charts of what they have before a `/`. So what a campaign
is read for has no group, and the groups begin with letters after `tok_s`: they neither come before
the few nor stand between them where cells are compared.

- no group: speed, hits, bytes per token, peak memory; what of reading ahead was useful, what
  dropping did to the text. No more than fit into the box that MLflow shows without scrolling
- `token/`: the single tokens, as the engine wrote them
- `use/`: what the cell used of the machine: memory, cores, faults; loading and prefill
- `vitals/`: the device meanwhile: probes, memory available, neighbours, the pause before
- `work/`: what was done, equal for equal work: counters of the whole run, drops, the text

A per-token series under a summary's name is the *running* value: at token i what the summary would
be had the cell ended there. Its last value is the summary itself, so a table that shows the latest
value and a chart that shows the series agree. MLflow draws a metric whose step never leaves 0 as
bars, one a cell, and any other as lines over the token.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.engines.native import Row
from harness.jsonable import to_json
from harness.planned import Arm
from harness.records import CellRecord
from harness.tracking_text import flatten, without_secrets

# Running series: name of the summary -> numerator, denominator (None: tokens so far), factor.
_RUNNING: dict[str, tuple[str | None, str | None, float]] = {
    "tok_s": (None, "wall_ms", 1e3),
    "hit_rate": ("hits", "requests", 1.0),
    "bytes_per_token": ("read_bytes", None, 1.0),
    "spec_bytes_per_token": ("spec_read_bytes", None, 1.0),
    "spec_useful_share": ("spec_useful", "spec_experts", 1.0),
    "dropped_share": ("dropped", "routed", 1.0),
    "stall_ms_per_token": ("stall_ms", None, 1.0),
    "majflt_per_token": ("majflt", None, 1.0),
    "invol_ctx_per_token": ("invol_ctx", None, 1.0),
}
_RAW = ("wall_ms", "io_ms", "compute_ms", "stall_ms", "read_bytes", "majflt")

# Fields of a record's metrics that are not what a campaign is read for. Others have no group.
_GROUPS: dict[str, tuple[str, ...]] = {
    "use": (
        *("rss_peak_bytes", "anon_within_limit", "majflt_per_token", "invol_ctx_per_token"),
        *("cpu_wait_share", "cpu_throttled_share", "sampler_cpu_share"),
        *("load_s", "prefill_tok_s"),
    ),
    "vitals": ("neighbour_cpu_share", "steal_cpu_share"),
    "token": ("wall_ms_median", "stall_ms_per_token"),
    "work": ("hit_rate_total", "nll", "agreement", "dropped_share", "spec_bytes_per_token"),
}
_NAMES = {field: f"{group}/{field}" for group, fields in _GROUPS.items() for field in fields}

# A hue an arm, so that its cells are told from the others' in every chart of a campaign.
_HUES = ("0072b2", "d55e00", "009e73", "cc79a7", "56b4e9", "8b5a2b", "7f3fbf", "b8a000")
_LIGHTER = (0.0, 0.3, 0.55)  # one of these a campaign: two in one chart can be told apart


@dataclass(frozen=True)
class Point:
    """One value of a metric; `step` is the token, `unix_ms` when it was measured."""

    key: str
    value: float
    unix_ms: int
    step: int


def metric_name(field: str) -> str:
    """What a field of a record's metrics is called in the store."""
    return _NAMES.get(field, field)


def cell_name(record: CellRecord, campaign: str) -> str:
    """`02-spec2 5a89`: its place and cell, and the end of the campaign's id.

    Cells of several campaigns stand in one chart, whose legend is all that tells them apart.
    """
    return f"{record.index:02d}-{record.cell} {campaign.rpartition('-')[2][-12:]}"


def cell_colour(record: CellRecord, arms: Sequence[str], campaign: str) -> str:
    """`#rrggbb`, by the cell's arm; `arms`: those of the campaign, in the order of its plan."""
    place = arms.index(record.arm) if record.arm in arms else 0
    lighter = _LIGHTER[hashlib.sha256(campaign.encode()).digest()[0] % len(_LIGHTER)]
    hue = _HUES[place % len(_HUES)]
    parts = [int(hue[i : i + 2], 16) for i in (0, 2, 4)]
    return "#" + "".join(f"{round(part + (255 - part) * lighter):02x}" for part in parts)


def cell_order(record: CellRecord, campaign: str) -> str:
    """What a descending sort puts in order: the newest campaign first, its first cell first."""
    return f"{campaign} {9999 - record.index:04d}"


# --- parameters ----------------------------------------------------------------------------------


def cell_params(record: CellRecord, arm: Arm | None) -> dict[str, str]:
    """What the cell was: each setting as the engine says that it took it, else as it was asked for.

    `asked.NAME`: where the engine took another than the one that was asked for.
    """
    said: dict[str, Any] = {k: v for k, v in to_json(record.identity).items() if v is not None}
    asked: dict[str, Any] = {}
    more: dict[str, Any] = {}
    if arm is not None:
        asked = {k: v for k, v in to_json(arm.engine).items() if v is not None}
        more = _texts(arm)
    params = {
        **asked,
        **said,
        "asked": {k: v for k, v in asked.items() if k in said and said[k] != v},
        **more,
        "cell": record.cell,
        "arm": record.arm,
        "role": record.role,
        "index": record.index,
        "level": None if record.level is None else record.level.name,
        "target": record.target.name,
        "data_limit_bytes": record.data_limit_bytes,
        "cgroup_limit_bytes": None if record.cgroup is None else record.cgroup.limit_bytes,
    }
    return flatten(without_secrets(params))


def _texts(arm: Arm) -> dict[str, Any]:
    return {
        "n_predict": arm.n_predict,
        "text": None if arm.text is None else arm.text.path,
        "perplexity": None if arm.perplexity is None else arm.perplexity.path,
        "perplexity_chunks": arm.perplexity_chunks,
        "prompt_sha256": hashlib.sha256(arm.prompt.encode()).hexdigest(),
        "binary": None if arm.binary is None else arm.binary.path,
    }


# --- metrics -------------------------------------------------------------------------------------


def cell_points(record: CellRecord, rows: Sequence[Row], start_ms: int) -> Iterator[Point]:
    """Series by token, then the summaries that no series ends in."""
    walls = _column(rows, "wall_ms") or [0.0] * len(rows)
    times = [start_ms + round(ms) for ms in itertools.accumulate(walls)]
    last: dict[str, float] = {}
    for key, values in _series(rows):
        for step, (value, unix_ms) in enumerate(zip(values, times, strict=True)):
            if value is not None:
                last[key] = value
                yield Point(key, value, unix_ms, step)
    end_ms = times[-1] if times else start_ms
    for key, value in summaries(record).items():
        if key not in last:
            yield Point(key, value, end_ms, 0)
        elif abs(last[key] - value) > 1e-9 * abs(value):  # the summary has the last word
            yield Point(key, value, end_ms, len(rows))


def _series(rows: Sequence[Row]) -> Iterator[tuple[str, Sequence[float | None]]]:
    """Nothing for a column that was not measured, or not for every token."""
    counting = [1.0] * len(rows)
    for name, (numerator, denominator, factor) in _RUNNING.items():
        above = counting if numerator is None else _column(rows, numerator)
        below = counting if denominator is None else _column(rows, denominator)
        if above and below:
            yield (
                metric_name(name),
                [
                    factor * a / b if b else None
                    for a, b in zip(
                        itertools.accumulate(above), itertools.accumulate(below), strict=True
                    )
                ],
            )
    for name in _RAW:
        if values := _column(rows, name):
            yield f"token/{name}", values


def summaries(record: CellRecord) -> dict[str, float]:
    """One number each, by its name in the store; what was not measured is not there."""
    numbers: dict[str, Any] = {
        metric_name(name): value for name, value in to_json(record.metrics).items()
    }
    numbers["given_perplexity"] = record.metrics.given_perplexity
    if record.perplexity is not None:
        numbers["perplexity"] = record.perplexity.value
        numbers["work/perplexity_nll"] = record.perplexity.nll
        numbers["work/perplexity_stderr"] = record.perplexity.stderr
        numbers["work/scored_tokens"] = record.perplexity.tokens
    numbers |= _prefixed("work", to_json(record.counters))
    if record.cgroup is not None:
        counted = ("peak_bytes", "failcnt", "oom_kills")
        numbers |= {f"use/cgroup_{key}": getattr(record.cgroup, key) for key in counted}
    if record.prediction is not None:
        for name, score in record.prediction.predictors.items():
            if score.slots:
                numbers[f"predictor/{name}_slot_overlap"] = score.slots_hit / score.slots
            if score.routings:
                numbers[f"predictor/{name}_whole_routings"] = score.exact / score.routings
    numbers |= _prefixed("vitals", _vitals(record))
    return {key: float(value) for key, value in numbers.items() if value is not None}


def _vitals(record: CellRecord) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for when in ("before", "after"):
        probe = getattr(record.probe, when)
        if probe is not None:
            found[f"probe_compute_ms_{when}"] = probe.compute_ms
            found[f"probe_read_ms_{when}"] = probe.read_ms
    if record.entry is not None:
        found["mem_available_bytes_entry"] = record.entry.mem_available_bytes
    if record.wait is not None:
        found["wait_s"] = record.wait.seconds
    return found


def _prefixed(group: str, numbers: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{group}/{key}": value for key, value in numbers.items()}


def _column(rows: Sequence[Row], name: str) -> list[float]:
    """The column when every row has it, else nothing."""
    values = [v for row in rows if (v := row.get(name)) is not None]
    return values if len(values) == len(rows) else []
