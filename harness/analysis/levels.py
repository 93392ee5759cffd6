"""A ladder of memory limits: at which levels the engine ran, within its limit, and how. Pure.

Two quantities must not depend on the level, and show memory that is missed where they do: anonymous
memory beside the arena, and resident memory that is not anonymous.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.capped import decodes_given_text, scores_a_text
from harness.analysis.tables import MIB, Column, Data, Value, mib
from harness.findings import LevelResult, LevelRow, Likeness
from harness.planned import MemoryLevel
from harness.records import Arena, CellRecord
from harness.words import counted


def level_rows(records: Sequence[CellRecord]) -> tuple[LevelRow, ...]:
    """Every cell at its levels, cell by cell in their order, smallest limit first."""
    rows = [_row(r, r.level) for r in records if r.level is not None]
    order = list(dict.fromkeys(row.cell for row in rows))
    return tuple(sorted(rows, key=lambda row: (order.index(row.cell), row.limit_bytes or 0)))


def _row(record: CellRecord, level: MemoryLevel) -> LevelRow:
    m = record.metrics
    result, reason = _result(record)
    arena, cgroup = record.arena, record.cgroup
    greedy = not decodes_given_text(record) and not scores_a_text(record)
    return LevelRow(
        cell=level.cell,
        level=level.name,
        limit_bytes=record.data_limit_bytes,
        result=result,
        reason=reason,
        detail=None if record.status == "ok" else record.status_detail,
        arena_bytes=None if arena is None else arena.bytes,
        slots=() if arena is None else _slots(arena),
        coverage=None if arena is None else arena.coverage,
        anon_peak_bytes=m.anon_peak_bytes,
        rss_peak_bytes=m.rss_peak_bytes,
        within_limit=m.anon_within_limit,
        cgroup_limit_bytes=None if cgroup is None else cgroup.limit_bytes,
        cgroup_peak_bytes=None if cgroup is None else cgroup.peak_bytes,
        tok_s=m.tok_s,
        bytes_per_token=m.bytes_per_token,
        hit_rate=m.hit_rate,
        evictions=record.counters.evictions,
        output_sha256=record.output_sha256 if greedy else None,
    )


def _slots(arena: Arena) -> tuple[int, ...]:
    if arena.classes:
        return tuple(c.slots for c in arena.classes)
    return () if arena.slots is None else (arena.slots,)


def _result(record: CellRecord) -> tuple[LevelResult, str | None]:
    within = record.metrics.anon_within_limit
    if record.status == "killed":
        return "KILLED", record.status_detail
    if record.status != "ok":
        return "FAIL", record.status
    if within is None:
        return "FAIL", "not sampled"
    return ("PASS", None) if within else ("FAIL", "above its limit")


# --- what holds along a ladder -------------------------------------------------------------------


def greedy_likeness(rows: Sequence[LevelRow]) -> Likeness:
    """Of one cell's output at all the levels that it passed; one level alone shows nothing."""
    outputs = [row.output_sha256 for row in rows if row.result == "PASS"]
    if len(outputs) < 2 or None in outputs:
        return "not shown"
    return "identical" if len(set(outputs)) == 1 else "differs"


def levels_in_words(rows: Sequence[LevelRow]) -> list[str]:
    """For each cell: levels passed, what is constant along them, whether its output is."""
    lines = []
    for cell in dict.fromkeys(row.cell for row in rows):
        ladder = [row for row in rows if row.cell == cell]
        passed = [row for row in ladder if row.result == "PASS"]
        words = [f"{len(passed)} of {counted(len(ladder), 'level')} passed"]
        for name, values in (
            ("anonymous beside the arena", [row.anon_beside_arena_bytes for row in passed]),
            ("resident beside anonymous", [row.rss_beside_anon_bytes for row in passed]),
        ):
            known = [value / MIB for value in values if value is not None]
            if known:
                low, high = min(known), max(known)
                words.append(f"{name} {low:.1f} to {high:.1f} MiB (spread {high - low:.1f})")
        words.append(f"greedy output at the passed levels: {greedy_likeness(ladder)}")
        lines.append(f"{cell}: {'; '.join(words)}")
    return lines


def levels_passed(rows: Sequence[LevelRow]) -> list[str]:
    """`lru passed 5 of 7 memory levels, the lowest 64 MiB`; cells of which it is the same at once.

    Every cell by itself is in `levels_in_words`.
    """
    alike: dict[str, list[str]] = {}
    for cell in dict.fromkeys(row.cell for row in rows):
        ladder = [row for row in rows if row.cell == cell]
        passed = [row for row in ladder if row.result == "PASS"]
        lowest = [row.limit_bytes / MIB for row in passed if row.limit_bytes is not None]
        words = f"{len(passed)} of {counted(len(ladder), 'memory level')}"
        words += f", the lowest {min(lowest):.4g} MiB" if lowest else ""
        alike.setdefault(words, []).append(cell)
    return [
        f"{cells[0] if len(cells) == 1 else f'{len(cells)} cells each'} passed {words}"
        for words, cells in alike.items()
    ]


def details_in_words(rows: Sequence[LevelRow]) -> list[str]:
    """A line for each level that did not end well, in the words of whoever ended it."""
    return [
        f"{row.cell}@{row.level}: {_result_in_words(row)}: {row.detail}"
        for row in rows
        if row.detail is not None
    ]


# --- tables --------------------------------------------------------------------------------------

_LEVEL = (Column("cell", "cell"), Column("level", "level"), Column("limit_mib", "limit MiB", "g"))


def levels_table(rows: Sequence[LevelRow]) -> Data:
    """One row a level: what it was, how it ended, what the pager did there.

    `detail` is for stores, which keep it whole; in a terminal it would not fit into a column.
    """
    columns = (
        *_LEVEL,
        Column("result", "result"),
        Column("arena_mib", "arena MiB", ".1f"),
        Column("slots", "slots"),
        Column("coverage", "coverage", ".1%"),
        Column("anon_mib", "anon MiB", ".1f"),
        Column("rss_mib", "RSS MiB", ".1f"),
        Column("within_limit", "within"),
        Column("tok_s", "tok/s", ".2f"),
        Column("mib_per_token", "MiB/token", ".2f"),
        Column("hit_rate", "hit rate", ".1%"),
        Column("evictions", "evictions", "d"),
        Column("detail", "detail"),
    )
    return Data(
        columns,
        tuple(
            (
                *_level(r),
                _result_in_words(r),
                mib(r.arena_bytes),
                "+".join(map(str, r.slots)) or None,
                r.coverage,
                mib(r.anon_peak_bytes),
                mib(r.rss_peak_bytes),
                None if r.within_limit is None else "yes" if r.within_limit else "no",
                r.tok_s,
                mib(r.bytes_per_token),
                r.hit_rate,
                r.evictions,
                r.detail,
            )
            for r in rows
        ),
    )


def levels_memory_table(rows: Sequence[LevelRow]) -> Data:
    """One row a level: what must not depend on it, and the cgroup's limit and peak."""
    columns = (
        *_LEVEL,
        Column("anon_beside_arena_mib", "anon - arena MiB", ".1f"),
        Column("rss_beside_anon_mib", "RSS - anon MiB", ".1f"),
        Column("cgroup_limit_mib", "cgroup MiB", ".1f"),
        Column("cgroup_peak_mib", "cgroup peak MiB", ".1f"),
    )
    return Data(
        columns,
        tuple(
            (
                *_level(r),
                mib(r.anon_beside_arena_bytes),
                mib(r.rss_beside_anon_bytes),
                mib(r.cgroup_limit_bytes),
                mib(r.cgroup_peak_bytes),
            )
            for r in rows
        ),
    )


def _level(row: LevelRow) -> tuple[Value, ...]:
    return row.cell, row.level, mib(row.limit_bytes)


def _result_in_words(row: LevelRow) -> str:
    return f"FAIL ({row.reason})" if row.result == "FAIL" else row.result
