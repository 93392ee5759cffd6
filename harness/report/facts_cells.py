"""What the cells did and how fast they were, as tables; what differs is marked. Touches nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.analysis import tables
from harness.analysis.device_state import caps_khz, cpu_sensor, states_in_order
from harness.analysis.tables import MIB
from harness.planned import Plan
from harness.records import CellRecord
from harness.report.plot_style import arm_styles
from harness.report.shown import NOT_MEASURED, Cell, Rows, Shown, number, without_empty_columns
from harness.words import counted

VARIES, DIFFERS = "varies", "differs"


@dataclass(frozen=True)
class _Quantity:
    """`work`: equal in cells that did the same, so what differs is marked."""

    name: str
    form: str
    of: Callable[[CellRecord], float | int | None]
    work: bool = True


def _mib(value: float | None) -> float | None:
    return None if value is None else value / MIB


_QUANTITIES = (
    _Quantity("tokens", ",d", lambda r: r.counters.tokens),
    _Quantity("expert requests", ",d", lambda r: r.counters.requests),
    _Quantity("hits", ",d", lambda r: r.counters.hits),
    _Quantity("misses", ",d", lambda r: r.counters.misses),
    _Quantity("evictions", ",d", lambda r: r.counters.evictions),
    _Quantity("hit rate", ".1%", lambda r: r.metrics.hit_rate),
    _Quantity("bytes read", ",d", lambda r: r.counters.read_bytes),
    _Quantity("MiB read per token", ".3f", lambda r: _mib(r.metrics.bytes_per_token)),
    _Quantity(
        "MiB per token on speculation", ".3f", lambda r: _mib(r.metrics.spec_bytes_per_token)
    ),
    _Quantity("speculation that was useful", ".1%", lambda r: r.metrics.spec_useful_share),
    _Quantity("experts retained", ",d", lambda r: r.counters.retained),
    _Quantity("experts dropped", ".1%", lambda r: r.metrics.dropped_share),
    _Quantity("perplexity of the given text", ".4f", lambda r: r.metrics.given_perplexity),
    _Quantity("perplexity", ".4f", lambda r: None if r.perplexity is None else r.perplexity.value),
    _Quantity("top-k", "d", lambda r: r.identity.expert_used),
    _Quantity("threads", "d", lambda r: r.identity.threads),
    _Quantity("cache budget, MiB", ".1f", lambda r: _mib(r.identity.capacity_bytes)),
    _Quantity("tok/s", ".2f", lambda r: r.metrics.tok_s, work=False),
    _Quantity("median token, ms", ".2f", lambda r: r.metrics.wall_ms_median, work=False),
    _Quantity("prefill tok/s", ".1f", lambda r: r.metrics.prefill_tok_s, work=False),
    _Quantity("loading, s", ".2f", lambda r: r.metrics.load_s, work=False),
    _Quantity("stalled, ms per token", ".3f", lambda r: r.metrics.stall_ms_per_token, work=False),
    _Quantity("major faults per token", ".2f", lambda r: r.metrics.majflt_per_token, work=False),
    _Quantity("anonymous memory, MiB", ".1f", lambda r: _mib(r.metrics.anon_peak_bytes), False),
    _Quantity("resident memory, MiB", ".1f", lambda r: _mib(r.metrics.rss_peak_bytes), False),
    _Quantity("waited for a core", ".1%", lambda r: r.metrics.cpu_wait_share, work=False),
    _Quantity("other programs, cores", ".2f", lambda r: r.metrics.neighbour_cpu_share, work=False),
)


def arms_in_order(plan: Plan, records: Sequence[CellRecord]) -> list[str]:
    """Of those that ran: the baseline, the candidates, the rest."""
    ran = {r.arm for r in records}
    return [arm for arm in arm_styles(plan, records) if arm in ran]


def counters_by_arm(plan: Plan, records: Sequence[CellRecord]) -> Shown:
    """A row a quantity, a column an arm: the median of its cells that ended well.

    Of work counters it is marked where cells of one arm do not agree, and where an arm's are not
    the baseline's. What no cell measured is named in a note.
    """
    arms = arms_in_order(plan, records)
    well = {arm: [r for r in records if r.arm == arm and r.status == "ok"] for arm in arms}
    table = Rows("", ("", *arms), numeric=arms)
    table.add(
        "cells that ended well",
        *(f"{len(well[arm])} of {sum(r.arm == arm for r in records)}" for arm in arms),
    )
    absent = []
    for quantity in _QUANTITIES:
        values = {arm: [v for r in well[arm] if (v := quantity.of(r)) is not None] for arm in arms}
        if not any(values.values()):
            absent.append(quantity.name)
            continue
        measure = values.get(plan.baseline or "")
        table.add(
            quantity.name,
            *(
                _of_arm(quantity, values[arm], measure if arm != plan.baseline else None)
                for arm in arms
            ),
        )
    notes = [f"not measured in any cell: {'; '.join(absent)}"] if absent else []
    if any(cell.mark for row in table.rows for cell in row):
        notes.insert(
            0,
            f"{VARIES}: cells of one arm do not agree (median, lowest to highest); "
            f"{DIFFERS}: another amount of work than the baseline's",
        )
    table.notes = notes
    return table.shown()


def _of_arm(
    quantity: _Quantity, values: Sequence[float | int], measure: Sequence[float | int] | None
) -> Cell:
    if not values:
        return Cell(NOT_MEASURED, absent=True)
    low, high = min(values), max(values)
    # a count that was counted, not one between two
    middle = statistics.median_low(values) if quantity.work else statistics.median(values)
    text, ends = (
        format(middle, quantity.form),
        (format(low, quantity.form), format(high, quantity.form)),
    )
    if ends[0] != ends[1]:
        text += f" ({ends[0]} to {ends[1]})"
    if not quantity.work:
        return Cell(text)
    marks = [VARIES] if low != high else []
    if measure and (middle < min(measure) or middle > max(measure)):
        marks.append(DIFFERS)
    return Cell(text, ", ".join(marks))


def outputs_by_arm(plan: Plan, records: Sequence[CellRecord]) -> list[str]:
    """Whether cells of an arm wrote the same, in words; of arms with two outputs on record."""
    said = []
    for arm in arms_in_order(plan, records):
        known = [r.output_sha256 for r in records if r.arm == arm and r.output_sha256]
        if len(known) > 1:
            alike = len(set(known)) == 1
            many = counted(len(known), "cell")
            said.append(
                f"{arm}: output of {many} {'identical' if alike else 'not identical'}"
                + (f" (sha256 {known[0][:12]})" if alike else "")
            )
    return said


def cells_table(records: Sequence[CellRecord]) -> Shown:
    """One row a cell: speed, work, and the device at its entry."""
    results = tables.results(records)
    sensor = cpu_sensor([state for _, state in states_in_order(records)])
    heads = [c.title or "no." for c in results.columns]
    more = ("tokens", "misses", "evictions", "faults/token", *_ENTRY)
    table = Rows(
        "", (*heads, *more), [h for h, c in zip(heads, results.columns, strict=True) if c.form]
    )
    table.numeric = [*table.numeric, *more]
    for record, row in zip(records, results.rows, strict=True):
        cells = []
        for column, value in zip(results.columns, row, strict=True):
            if column.key == "status":
                cells.append(_status(record))
            elif isinstance(value, str):
                cells.append(Cell(value))
            else:
                cells.append(number(value, column.form))
        c, probe = record.counters, record.probe.before
        caps = caps_khz(record.entry).values()
        temp = sensor.read(record.entry)
        cells += [
            number(c.tokens, "d"),
            number(c.misses, "d"),
            number(c.evictions, "d"),
            number(record.metrics.majflt_per_token, ".2f"),
            number(max(caps) / 1e6 if caps else None, ".2f"),
            number(temp, ".1f"),
            number(None if probe is None else probe.compute_ms, ".2f"),
            number(None if probe is None else probe.read_ms, ".2f"),
        ]
        table.add(*cells)
    return without_empty_columns(table.shown(), "not measured in any cell")


_ENTRY = ("cap GHz", "CPU °C", "compute probe ms", "read probe ms")


def _status(record: CellRecord) -> Cell:
    return Cell(record.status, tone="good" if record.status == "ok" else "bad")
