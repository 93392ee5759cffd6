"""Which cells' timing can be attributed to their arm, found blind to which arm it is. Pure.

The rules are in `tells` (one cell), `session_tells` (a cell against the others) and `work_tells`
(its work against its arm's); here they are brought together. Thresholds and where each comes from:
docs/contamination.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.analysis import session_tells as session
from harness.analysis import tells
from harness.analysis import work_tells as work
from harness.analysis.series import Series
from harness.analysis.steps import MIN_CELLS, Step, against_bytes, against_others, best_step
from harness.analysis.usable import out_of_place
from harness.records import CellRecord
from harness.verdicts import CellVerdict
from harness.words import counted


@dataclass(frozen=True)
class ContaminationSettings:
    """Thresholds; a tell beyond its threshold discards the cell. `_pct` percent, `_c` degrees."""

    warmup_tokens: int = 16  # left out everywhere, as in the mean that is judged
    min_tokens: int = 64
    read_bytes_tolerance_pct: float = 0.1
    # a step in the trace: how much, how sure, how many tokens on both sides
    step_pct: float = 4.0
    step_z: float = 5.0
    step_min_tokens: int = 24
    # the same where a cap or a probe moved too
    followed_pct: float = 4.0
    followed_z: float = 3.0
    cap_move_pct: float = 3.0
    probe_move_pct: float = 6.0
    entry_cap_pct: float = 15.0
    # same work, other time: against the arm's cells before and after
    slow_cell_pct: float = 10.0
    slow_cell_one_side_counts: bool = False  # for sessions without coins
    # a token with more major faults than this is compared with calm ones; the time they may take
    majflt_many_per_token: float = 100.0
    majflt_time_pct: float = 10.0
    # of the cell's time; all but the quota's above the session's median; 100 % is one core
    cpu_throttled_pct: float = 5.0
    cpu_wait_pct: float = 5.0
    neighbour_cpu_pct: float = 25.0
    steal_cpu_pct: float = 5.0
    cpu_starved_pct: float = 10.0
    mem_available_floor_mib: float = 1024.0  # where major faults were not counted
    # for notes alone
    stall_time_pct: float = 10.0
    temp_above_c: float = 5.0


def examine(
    records: Sequence[CellRecord], series: Mapping[int, Series], settings: ContaminationSettings
) -> tuple[CellVerdict, ...]:
    """One verdict for each record, in the order of `records`; `series` by the index of the cell.

    Depends on which cells are of one arm, never on what the arm is called, nor on its role. Cells
    that are unusable are no measure for others.
    """
    displaced = out_of_place(records)
    unusable = {
        r.index: why
        for r in records
        if (why := _unusable(r, series, settings) or displaced.get(r.index))
    }
    cells = sorted((r for r in records if r.index not in unusable), key=lambda r: r.index)
    found = dict(zip((r.index for r in cells), _findings(cells, series, settings), strict=True))
    return tuple(
        CellVerdict(r.index, r.cell, "unusable", (unusable[r.index],))
        if r.index in unusable
        else _verdict(r, found[r.index])
        for r in records
    )


def _verdict(record: CellRecord, found: tells.Finding) -> CellVerdict:
    if found.reasons:
        return CellVerdict(
            record.index, record.cell, "contaminated", found.reasons, found.notes, found.stretch
        )
    if found.could_tell:
        return CellVerdict(record.index, record.cell, "clean", notes=found.notes)
    why = "nothing was recorded that could tell the device's speed from the cell's work"
    return CellVerdict(record.index, record.cell, "unknown", (why,), found.notes)


def _unusable(
    record: CellRecord, series: Mapping[int, Series], s: ContaminationSettings
) -> str | None:
    """Why the cell has no speed to judge; None where it has."""
    if record.status != "ok":
        return f"{record.status}: {record.status_detail or 'no detail'}"
    trace = series.get(record.index)
    if trace is None and record.metrics.tok_s is None:
        return "no speed was recorded"
    tokens = record.counters.tokens if trace is None else len(trace)
    if tokens is not None and tokens < s.min_tokens:
        return f"{counted(tokens, 'token')} decoded, {s.min_tokens} are the least"
    return None


def _findings(
    records: Sequence[CellRecord], series: Mapping[int, Series], s: ContaminationSettings
) -> list[tells.Finding]:
    """Of usable cells in the order of their indices."""
    traces = [series.get(r.index) for r in records]
    steps = _steps(records, traces, s)
    faults = [
        tells.fault_time(r, t, s.warmup_tokens, s.majflt_many_per_token)
        for r, t in zip(records, traces, strict=True)
    ]
    fault_shares = session.arm_medians(
        records, [None if f is None else f.share for f in faults], MIN_CELLS
    )
    typical = [session.typical_ln_ms(t, s.warmup_tokens) for t in traces]
    # where the content may still be in the trace, it must be a step by itself
    follows = [(s.followed_pct, s.followed_z if t.compared else s.step_z) for t in steps]
    across = zip(
        session.probes_moved(records, [t.step for t in steps], follows, probe_pct=s.probe_move_pct),
        work.counters_differ(records, read_bytes_tolerance_pct=s.read_bytes_tolerance_pct),
        work.not_as_asked(records),
        session.slower_than_its_twins(
            records,
            typical,
            slow_pct=s.slow_cell_pct,
            one_side_counts=s.slow_cell_one_side_counts,
        ),
        session.throttled_at_entry(records, cap_pct=s.entry_cap_pct),
        session.starved(records, series, share_pct=s.cpu_starved_pct),
        session.shares_out_of_line(records, (s.cpu_wait_pct, s.neighbour_cpu_pct, s.steal_cpu_pct)),
        session.temperature_notes(records, above_c=s.temp_above_c),
        strict=True,
    )
    found = []
    for i, others in enumerate(across):
        record, trace = records[i], traces[i]
        own = [
            _trace_finding(steps[i], trace, s),
            tells.cap_moved(
                record,
                steps[i].step,
                cap_pct=s.cap_move_pct,
                change_pct=follows[i][0],
                z=follows[i][1],
            ),
            tells.went_beyond(record, steps[i].step, change_pct=follows[i][0], z=follows[i][1]),
            tells.fault_storm(faults[i], fault_shares[i], share_pct=s.majflt_time_pct),
            tells.throttled_by_quota(record, share_pct=s.cpu_throttled_pct),
            tells.memory_ran_out(
                record, trace, s.warmup_tokens, floor_mib=s.mem_available_floor_mib
            ),
        ]
        if trace is not None:
            own.append(tells.stalls(trace, s.warmup_tokens, share_pct=s.stall_time_pct))
        found.append(tells.merged([*own, *others]))
    return found


@dataclass(frozen=True)
class _TraceStep:
    """The best split of a cell's trace, and whether the cells of its arm took the content out."""

    step: Step | None = None
    compared: bool = False


def _steps(
    records: Sequence[CellRecord], traces: Sequence[Series | None], s: ContaminationSettings
) -> list[_TraceStep]:
    found = [_TraceStep()] * len(records)
    for places in session.by_arm(records):
        with_trace = [(i, t) for i in places if (t := traces[i]) is not None]
        compared = against_others([t for _, t in with_trace], s.warmup_tokens)
        for (i, trace), residual in zip(with_trace, compared, strict=True):
            left = against_bytes(trace, s.warmup_tokens) if residual is None else residual
            step = None if left is None else best_step(left, s.step_min_tokens)
            found[i] = _TraceStep(step, residual is not None)
    return found


def _trace_finding(
    found: _TraceStep, trace: Series | None, s: ContaminationSettings
) -> tells.Finding:
    if trace is None:
        return tells.NOTHING
    rule = tells.trace_step if found.compared else tells.own_trace
    return rule(found.step, s.warmup_tokens, len(trace), change_pct=s.step_pct, z=s.step_z)
