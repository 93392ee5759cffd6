"""Which eviction policy reads least, at which cap? Pure."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.capped import (
    CAP,
    cap_bytes,
    cap_mib,
    configured_name,
    policy_of,
    scores_a_text,
    smallest_cap_first,
)
from harness.analysis.tables import MIB, Column, Data
from harness.findings import EvictionRow
from harness.records import CellRecord

MEASURE = "lru"


def eviction_rows(records: Sequence[CellRecord]) -> tuple[EvictionRow, ...]:
    """Every paging cell that decodes, smallest cap first, at one cap in the order of the cells.

    Empty where all cells have one policy.
    """
    paging = [r for r in records if policy_of(r) is not None and not scores_a_text(r)]
    if len({policy_of(r) for r in paging}) < 2:
        return ()
    paging.sort(key=lambda r: smallest_cap_first(cap_bytes(r)))
    of_lru: dict[int | None, float] = {}
    for r in paging:
        if policy_of(r) == MEASURE and r.metrics.bytes_per_token:
            of_lru.setdefault(cap_bytes(r), r.metrics.bytes_per_token)
    return tuple(_row(r, of_lru.get(cap_bytes(r))) for r in paging)


def _row(record: CellRecord, of_lru: float | None) -> EvictionRow:
    m, c = record.metrics, record.counters
    read = m.bytes_per_token
    return EvictionRow(
        cell=configured_name(record),
        status=record.status,
        policy=policy_of(record),
        cap_bytes=cap_bytes(record),
        tok_s=m.tok_s,
        hit_rate=m.hit_rate,
        bytes_per_token=read,
        read_vs_lru=None if read is None or of_lru is None else read / of_lru,
        evictions=c.evictions,
        stale_left=c.evict_stale_left,
        stale_right=c.evict_stale_right,
        current_left=c.evict_current_left,
        current_right=c.evict_current_right,
    )


def eviction_table(rows: Sequence[EvictionRow]) -> Data:
    """One row a cap and policy."""
    columns = (
        CAP,
        Column("policy", "policy"),
        Column("cell", "cell"),
        Column("hit_rate", "hit rate", ".1%"),
        Column("mib_per_token", "MiB/token", ".2f"),
        Column("read_vs_lru", "read / lru", ".3f"),
        Column("evictions", "evictions", "d"),
        Column("stale_left", "stale left", "d"),
        Column("stale_right", "stale right", "d"),
        Column("current_left", "current left", "d"),
        Column("current_right", "current right", "d"),
        Column("tok_s", "tok/s", ".2f"),
        Column("status", "status"),
    )
    return Data(
        columns,
        tuple(
            (
                cap_mib(r.cap_bytes),
                r.policy,
                r.cell,
                r.hit_rate,
                None if r.bytes_per_token is None else r.bytes_per_token / MIB,
                r.read_vs_lru,
                r.evictions,
                r.stale_left,
                r.stale_right,
                r.current_left,
                r.current_right,
                r.tok_s,
                r.status,
            )
            for r in rows
        ),
    )
