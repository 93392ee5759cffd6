"""What do fewer experts per token save, at which cap, and what do they cost? Pure.

Three kinds of cells of one campaign are brought together by their top-k: those that decode under a
cap (speed, bytes, hits), those that score a text (perplexity), and those that decode greedily
(where the output parts from that of the model's own top-k). The last two do not depend on the cap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.analysis.capped import (
    CAP,
    cap_bytes,
    cap_mib,
    configured_name,
    decodes_given_text,
    policy_of,
    scores_a_text,
    smallest_cap_first,
)
from harness.analysis.counters import flag_value
from harness.analysis.outputs import Output, first_difference
from harness.analysis.tables import MIB, Column, Data
from harness.findings import TopKRow
from harness.records import CellRecord, Perplexity
from harness.words import counted


def topk_rows(records: Sequence[CellRecord], outputs: Mapping[int, Output]) -> tuple[TopKRow, ...]:
    """Every capped paging cell that decodes: smallest cap first, then largest top-k first.

    `outputs`: by the cell's index. Empty where all of them have one top-k.
    """
    own = _own_top_k(records)
    decoding = [
        r
        for r in records
        if policy_of(r) is not None and cap_bytes(r) is not None and not scores_a_text(r)
    ]
    if len({_top_k(r, own) for r in decoding}) < 2:
        return ()
    greedy = _greedy_outputs(records, outputs, own)
    perplexities = {
        _top_k(r, own): r.perplexity for r in reversed(records) if r.perplexity is not None
    }
    rows = [
        _row(r, _top_k(r, own), perplexities.get(_top_k(r, own)), _parting(greedy, r, own))
        for r in decoding
    ]
    return tuple(
        sorted(rows, key=lambda row: (smallest_cap_first(row.cap_bytes), -(row.top_k or 0)))
    )


def _own_top_k(records: Sequence[CellRecord]) -> int | None:
    """The model's, as a cell that did not ask for another one reports it."""
    return next(
        (
            r.identity.expert_used
            for r in records
            if flag_value(r.argv, "--expert-used") is None and r.identity.expert_used is not None
        ),
        None,
    )


def _top_k(record: CellRecord, own: int | None) -> int | None:
    """Also of a cell that was refused before it could report it."""
    if record.identity.expert_used is not None:
        return record.identity.expert_used
    asked = flag_value(record.argv, "--expert-used")
    if asked is None:
        return own
    return int(asked) if asked.isdigit() else None


def _greedy_outputs(
    records: Sequence[CellRecord], outputs: Mapping[int, Output], own: int | None
) -> dict[int | None, Output]:
    """By top-k; of several cells of one top-k the first."""
    found: dict[int | None, Output] = {}
    for r in records:
        output = outputs.get(r.index)
        if r.status == "ok" and output is not None and not decodes_given_text(r):
            found.setdefault(_top_k(r, own), output)
    return found


def _parting(
    greedy: Mapping[int | None, Output], record: CellRecord, own: int | None
) -> tuple[int | None, int | None]:
    """Tokens compared with the output of the model's own top-k, and the first that differs."""
    top_k = _top_k(record, own)
    a, b = greedy.get(top_k), greedy.get(own)
    if top_k == own or a is None or b is None:
        return None, None
    return min(len(a.ids), len(b.ids)), first_difference(a.ids, b.ids)


def _row(
    record: CellRecord,
    top_k: int | None,
    perplexity: Perplexity | None,
    parting: tuple[int | None, int | None],
) -> TopKRow:
    m = record.metrics
    return TopKRow(
        cell=configured_name(record),
        status=record.status,
        top_k=top_k,
        cap_bytes=cap_bytes(record),
        coverage=None if record.arena is None else record.arena.coverage,
        tok_s=m.tok_s,
        bytes_per_token=m.bytes_per_token,
        hit_rate=m.hit_rate,
        evictions=record.counters.evictions,
        requests=record.counters.requests,
        perplexity=None if perplexity is None else perplexity.value,
        perplexity_stderr=None if perplexity is None else perplexity.stderr,
        greedy_tokens=parting[0],
        parts_at=parting[1],
    )


def topk_table(rows: Sequence[TopKRow]) -> Data:
    """One row a cap and top-k."""
    columns = (
        CAP,
        Column("top_k", "top-k", "d"),
        Column("coverage", "coverage", ".1%"),
        Column("tok_s", "tok/s", ".2f"),
        Column("mib_per_token", "MiB/token", ".2f"),
        Column("hit_rate", "hit rate", ".1%"),
        Column("evictions", "evictions", "d"),
        Column("requests", "requests", "d"),
        Column("perplexity", "perplexity", ".4f"),
        Column("perplexity_stderr", "+-", ".4f"),
        Column("greedy_parts", "greedy output parts"),
        Column("status", "status"),
    )
    return Data(
        columns,
        tuple(
            (
                cap_mib(r.cap_bytes),
                r.top_k,
                r.coverage,
                r.tok_s,
                None if r.bytes_per_token is None else r.bytes_per_token / MIB,
                r.hit_rate,
                r.evictions,
                r.requests,
                r.perplexity,
                r.perplexity_stderr,
                _parts(r),
                r.status,
            )
            for r in rows
        ),
    )


def _parts(row: TopKRow) -> str | None:
    if row.greedy_tokens is None:
        return None
    if row.parts_at is None:
        return f"not in {counted(row.greedy_tokens, 'token')}"
    return f"at token {row.parts_at} of {row.greedy_tokens}"
