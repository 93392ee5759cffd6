"""Is greedy output the same, to the byte, under every cap and eviction policy? Pure.

The measure is plain inference: the same model, build, threads, batch and prompt, without paging. A
cell that has nothing to compare shows nothing; it is never called identical.
"""

from __future__ import annotations

from collections import Counter
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
from harness.analysis.counters import another_engine, drops, engine_asked, flag_value
from harness.analysis.outputs import Output, difference_in_words
from harness.analysis.tables import Column, Data
from harness.findings import IdentityRow, Likeness
from harness.records import CellRecord
from harness.words import counted

# What changes the output by itself: other weights, other kernels, other sums.
_SAME_FIELDS = {
    "model_sha256": "model",
    "engine_build_id": "build",
    "prompt_sha256": "prompt",
    "threads": "threads",
    "expert_used": "top-k",
}
_SAME_FLAGS = {"-b": "batch", "-c": "context", "-n": "tokens asked for", "--repack": "repacking"}


def identity_rows(
    records: Sequence[CellRecord], outputs: Mapping[int, Output]
) -> tuple[IdentityRow, ...]:
    """Every paging cell that decodes as the plain one does, smallest cap first.

    `outputs`: by the cell's index. Empty without a plain cell, or without one to compare with it.
    Where several engines have a plain cell, each is measured by its own.
    """
    decoding = [r for r in records if not scores_a_text(r)]
    plain: dict[str | None, CellRecord] = {}
    for r in decoding:
        if policy_of(r) is None:
            plain.setdefault(engine_asked(r), r)
    if not plain:
        return ()
    first = next(iter(plain.values()))
    measures = [(r, plain.get(engine_asked(r), first)) for r in decoding]
    rows = [
        _row(record, measure, outputs)
        for record, measure in measures
        if policy_of(record) is not None
        and decodes_given_text(record) == decodes_given_text(measure)
    ]
    return tuple(sorted(rows, key=lambda row: smallest_cap_first(row.cap_bytes)))


def _row(record: CellRecord, plain: CellRecord, outputs: Mapping[int, Output]) -> IdentityRow:
    own, its = outputs.get(record.index), outputs.get(plain.index)
    likeness: Likeness = "not shown"
    detail = _nothing_shown(record, own) or _nothing_shown(plain, its) or _other_work(record, plain)
    if detail is None and own is not None and its is not None:
        detail = difference_in_words(own, its, plain.cell)
        likeness = "identical" if detail is None else "differs"
    return IdentityRow(
        cell=configured_name(record),
        policy=policy_of(record),
        cap_bytes=cap_bytes(record),
        likeness=likeness,
        tokens=None if own is None else len(own.ids),
        text_bytes=None if own is None else len(own.text),
        hit_rate=record.metrics.hit_rate,
        evictions=record.counters.evictions,
        detail=detail,
    )


def _nothing_shown(record: CellRecord, output: Output | None) -> str | None:
    if record.status != "ok":
        return f"{record.cell} {record.status}: {record.status_detail or 'no reason given'}"
    if decodes_given_text(record):
        return f"{record.cell} decoded a given text, which is the same whatever was computed"
    if output is None or not output.ids:
        return f"{record.cell} left no output"
    return None


def _other_work(record: CellRecord, plain: CellRecord) -> str | None:
    """The first setting that may change the output by itself."""
    if drops(record):
        return f"{record.cell} drops experts, and with them parts of the result"
    if another_engine(record, plain):
        return f"{plain.cell} ran another engine"
    for field, name in _SAME_FIELDS.items():
        own, its = getattr(record.identity, field), getattr(plain.identity, field)
        if own is None or own != its:
            return f"{name} {_said(own)}, in {plain.cell} {_said(its)}"
    for flag, name in _SAME_FLAGS.items():
        own, its = flag_value(record.argv, flag), flag_value(plain.argv, flag)
        if own != its:
            return f"{name} {_said(own)}, in {plain.cell} {_said(its)}"
    return None


def _said(value: str | int | None) -> str:
    return "not known" if value is None else str(value)[:12]


def identity_verdict(rows: Sequence[IdentityRow]) -> Likeness:
    """Of all cells together: one difference decides, one that shows nothing leaves it open."""
    found = {row.likeness for row in rows}
    if "differs" in found:
        return "differs"
    return "identical" if found == {"identical"} else "not shown"


def identity_in_words(rows: Sequence[IdentityRow]) -> str:
    """One line; cells that evicted nothing are counted, as they say nothing of eviction."""
    count = Counter(row.likeness for row in rows)
    words = [
        f"greedy output: {count['identical']} of {counted(len(rows), 'cell')} identical to plain"
    ]
    if count["differs"]:
        words.append(f"{count['differs']} differ{'s' if count['differs'] == 1 else ''}")
    if count["not shown"]:
        words.append(f"{count['not shown']} not shown")
    idle = sum(row.likeness == "identical" and row.evictions == 0 for row in rows)
    if idle:
        words.append(f"{idle} of the identical evicted nothing")
    return ", ".join(words)


def identity_table(rows: Sequence[IdentityRow]) -> Data:
    """One row a cell."""
    columns = (
        CAP,
        Column("policy", "policy"),
        Column("cell", "cell"),
        Column("likeness", "output"),
        Column("tokens", "tokens", "d"),
        Column("text_bytes", "bytes", "d"),
        Column("hit_rate", "hit rate", ".1%"),
        Column("evictions", "evictions", "d"),
        Column("detail", "first difference, or why not shown"),
    )
    return Data(
        columns,
        tuple(
            (
                cap_mib(r.cap_bytes),
                r.policy,
                r.cell,
                r.likeness,
                r.tokens,
                r.text_bytes,
                r.hit_rate,
                r.evictions,
                r.detail,
            )
            for r in rows
        ),
    )
