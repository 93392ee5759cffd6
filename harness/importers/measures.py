"""Rows of an imported cell: what they add up to, and how they are stored. Touches nothing.

A row is a mapping from the columns of `tokens.csv` (docs/engine.md) to numbers; a column that no
row has was not measured.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from harness.importers.text import as_whole, ratio
from harness.records import Counters, Metrics

Row = Mapping[str, float | None]

# as the engine writes them, then what only imported cells have
COLUMNS = (
    *("token", "wall_ms", "io_ms", "compute_ms", "stall_ms", "manage_ms", "read_bytes"),
    *("requests", "hits", "misses", "evictions", "spec_read_bytes", "spec_experts"),
    *("spec_useful", "retained", "routed", "dropped"),
    *("majflt", "minflt", "cpu_ms", "invol_ctx", "swap_bytes", "mem_available_bytes"),
    *("rss_bytes", "rss_anon_bytes", "turn", "lane_busy_ms"),
)
_COUNTED = (
    *("read_bytes", "requests", "hits", "misses", "evictions", "spec_read_bytes"),
    *("spec_experts", "spec_useful", "retained", "routed", "dropped"),
)
# tok/s as printed has three decimals, and its wall times three of a millisecond
RATE_TOLERANCE = 0.00051
# rounding of three values to a thousandth of a millisecond
_ADDS_UP_MS = 0.005


def column(rows: Sequence[Row], name: str) -> list[float]:
    """All values of a column, or nothing when any of them was not measured."""
    values = [v for row in rows if (v := row.get(name)) is not None]
    return values if len(values) == len(rows) else []


def total(rows: Sequence[Row], name: str) -> float | None:
    """The sum of a column that every row has."""
    values = column(rows, name)
    return math.fsum(values) if values else None


def reading_adds_up(rows: Sequence[Row]) -> bool:
    """Reading, computing and managing make up every wall time: compute waited for every read."""
    for row in rows:
        wall_ms, io_ms, compute_ms = (row.get(n) for n in ("wall_ms", "io_ms", "compute_ms"))
        if wall_ms is None or io_ms is None or compute_ms is None:
            return False
        if abs(wall_ms - io_ms - compute_ms - (row.get("manage_ms") or 0.0)) > _ADDS_UP_MS:
            return False
    return bool(rows)


def tok_s(rows: Sequence[Row]) -> float | None:
    """Rows / sum of wall times; None where a row has none."""
    return ratio(len(rows) * 1e3, total(rows, "wall_ms"))


def counters(rows: Sequence[Row]) -> Counters:
    """Of decoding alone: other engines' rows do not say what the prompt cost."""
    if not rows:
        return Counters()
    summed = {name: as_whole(total(rows, name)) for name in _COUNTED}
    return Counters(tokens=len(rows), **summed)


def metrics(rows: Sequence[Row]) -> Metrics:
    """Rates of decoding; memory peaks are the largest value at the end of a token."""
    walls = column(rows, "wall_ms")
    n = len(rows)

    def per_token(name: str) -> float | None:
        return ratio(total(rows, name), n)

    def share(part: str, of: str) -> float | None:
        return ratio(total(rows, part), total(rows, of))

    def peak(name: str) -> int | None:
        return as_whole(max((v for r in rows if (v := r.get(name)) is not None), default=None))

    return Metrics(
        tok_s=tok_s(rows),
        wall_ms_median=statistics.median(walls) if walls else None,
        hit_rate=share("hits", "requests"),
        bytes_per_token=per_token("read_bytes"),
        spec_bytes_per_token=per_token("spec_read_bytes"),
        spec_useful_share=share("spec_useful", "spec_experts"),
        dropped_share=share("dropped", "routed"),
        majflt_per_token=per_token("majflt"),
        stall_ms_per_token=per_token("stall_ms"),
        invol_ctx_per_token=per_token("invol_ctx"),
        anon_peak_bytes=peak("rss_anon_bytes"),
        rss_peak_bytes=peak("rss_bytes"),
    )


def known(first: Metrics, second: Metrics) -> Metrics:
    """`first`, and where it has nothing, `second`."""
    return dataclasses.replace(
        first,
        **{
            f.name: getattr(second, f.name)
            for f in dataclasses.fields(Metrics)
            if getattr(first, f.name) is None
        },
    )


def tokens_csv(rows: Sequence[Row]) -> bytes:
    """`tokens.csv`: the columns that any row has, an empty field for what a row has not."""
    present = {name for row in rows for name, value in row.items() if value is not None}
    names = ["token", *(c for c in COLUMNS if c in present and c != "token")]
    lines = [",".join(names)]
    for i, row in enumerate(rows):
        lines.append(",".join([str(i), *(_text(row.get(name)) for name in names[1:])]))
    return ("\n".join(lines) + "\n").encode()


def _text(value: float | None) -> str:
    if value is None:
        return ""
    exact = as_whole(value)
    return str(exact) if exact is not None else repr(value)
