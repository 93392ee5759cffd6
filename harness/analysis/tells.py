"""What one cell shows of a device that moved while it ran. Pure: one small rule for each tell.

A rule answers with a `Finding`. It can only act where its data was recorded; where it was, and
nothing is wrong, it says so too (`could_tell`), since a cell of which nothing could have told is
not clean but unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from harness.analysis.device_state import cap_dips, cap_moves_inside, caps_khz, dip_in_words
from harness.analysis.series import Array, Series
from harness.analysis.steps import Step
from harness.readings import Excursion
from harness.records import CellRecord
from harness.words import counted

MIB = 2.0**20
_SWAP_WORTH_SAYING_MIB = 256.0


@dataclass(frozen=True)
class Finding:
    """`reasons` discard the cell, `notes` do not; `could_tell`: a fault would have been seen.

    `stretch`: the first and the last token that the reasons are about.
    """

    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    could_tell: bool = False
    stretch: tuple[int, int] | None = None


NOTHING = Finding()


def merged(findings: Iterable[Finding]) -> Finding:
    """All that the rules found, in their order."""
    found = list(findings)
    return Finding(
        tuple(r for f in found for r in f.reasons),
        tuple(n for f in found for n in f.notes),
        any(f.could_tell for f in found),
        next((f.stretch for f in found if f.stretch is not None), None),
    )


# --- the trace -----------------------------------------------------------------------------------


def trace_step(
    step: Step | None, first_token: int, tokens: int, *, change_pct: float, z: float
) -> Finding:
    """A step in a trace from which the other cells of the arm have taken the content.

    `first_token`: of the trace; `tokens`: of the cell, for the words.
    """
    if step is None:
        return NOTHING
    if _moves(step, change_pct, z):
        words = _step_words(step, first_token, tokens)
        return Finding((words,), could_tell=True, stretch=(first_token + step.token, tokens - 1))
    return Finding(could_tell=True)


def own_trace(
    step: Step | None, first_token: int, tokens: int, *, change_pct: float, z: float
) -> Finding:
    """The same in a trace that nothing was compared with: it may be the text that changed.

    So a step is a note, and tells nothing; that the speed stayed where it was does.
    """
    if step is None:
        return NOTHING
    if _moves(step, change_pct, z):
        words = _step_words(step, first_token, tokens)
        return Finding(notes=(f"{words}; no cells of the same work show whether it is the text",))
    return Finding(could_tell=abs(step.change) <= math.log1p(change_pct / 100))


def cap_moved(
    record: CellRecord, step: Step | None, *, cap_pct: float, change_pct: float, z: float
) -> Finding:
    """A cluster's frequency cap changed inside the cell, and the speed with it.

    Where there is a trace that did not follow, the tokens were not slowed: a note. `change_pct`,
    `z`: what counts as following, which may be less than a step that stands alone.
    """
    before, after = caps_khz(record.entry), caps_khz(record.exit)
    shared = before.keys() & after.keys()
    if not shared:
        return NOTHING
    moves = cap_moves_inside(record, cap_pct)
    if not moves:
        return Finding(could_tell=True)
    furthest = max(shared, key=lambda p: abs(math.log(after[p] / before[p])))
    words = "; ".join(moves)
    if step is None:
        return Finding((words,), could_tell=True)
    if followed(step, before[furthest] > after[furthest], change_pct, z):
        return Finding((f"{words}, and its tokens became {percent(step)}",), could_tell=True)
    return Finding(notes=(f"{words}, but its tokens did not follow",), could_tell=True)


def went_beyond(record: CellRecord, step: Step | None, *, change_pct: float, z: float) -> Finding:
    """Excursions: a cap that fell inside the cell and came back, and temperatures beyond a limit.

    As with caps that moved for good, a cap counts where the tokens followed, and where no trace
    shows whether they did; both its fall and its return may be the larger step. A temperature is a
    note whatever the tokens did: heat that slows them shows in the caps, or in the trace itself.
    """
    reasons: list[str] = []
    notes = [_heat_in_words(e) for e in record.excursions or () if e.what != "cap_drop"]
    for dip in cap_dips(record):
        words = dip_in_words(record, dip)
        if step is None:
            reasons.append(words)
        elif _moves(step, change_pct, z):
            reasons.append(f"{words}, and its tokens became {percent(step)}")
        else:
            notes.append(f"{words}, but its tokens did not follow")
    return Finding(tuple(reasons), tuple(notes), could_tell=bool(reasons))


def _heat_in_words(e: Excursion) -> str:
    allowed = f"{e.limit:g} °C" if e.what == "cpu_temp_max" else f"{e.limit - e.start:g} °C more"
    return (
        f"{e.sensor} went from {e.start:.1f} to {e.value:.1f} °C within {e.t_ms / 1000:.1f} s, "
        f"{allowed} allowed"
    )


def followed(step: Step, slower: bool, change_pct: float, z: float) -> bool:
    """The trace moved the way that a tell from beside the cell says."""
    return _moves(step, change_pct, z) and (step.change > 0) == slower


def _moves(step: Step, change_pct: float, z: float) -> bool:
    return abs(step.change) > math.log1p(change_pct / 100) and abs(step.z) > z


def _step_words(step: Step, first_token: int, tokens: int) -> str:
    at = first_token + step.token
    return (
        f"from token {at} on (to {tokens - 1}) it is {percent(step)} than in tokens {first_token} "
        f"to {at - 1} (z {step.z:+.1f})"
    )


def percent(step: Step) -> str:
    """In words: how much slower or faster after the step."""
    return f"{abs(math.expm1(step.change)):.1%} {'slower' if step.change > 0 else 'faster'}"


# --- page faults and memory ----------------------------------------------------------------------


@dataclass(frozen=True)
class FaultTime:
    """`share` of the cell's time is what its tokens with many faults took beyond its calm ones.

    `per_token`: major faults, mean; `first`, `last`: tokens with many; `count` of them. `mapped`:
    the weights are read through the page cache, None where that is not known.
    """

    share: float
    per_token: float
    count: int
    first: int
    last: int
    mapped: bool | None


def fault_time(
    record: CellRecord, series: Series | None, warmup_tokens: int, many_per_token: float
) -> FaultTime | None:
    """How much of the time after the warm-up major faults took; None where it cannot be told.

    A token with many faults is compared with the median token at or below the cell's own median of
    faults: what it computed longer is the faults' (compute is where fault service shows, and it
    varies least with content; the wall where it was not recorded). Many: more than
    `many_per_token`; and, unless all weights are known to be held in memory, more than ten times
    the cell's own median, since weights that are mapped fault by design.
    """
    if series is None or series.majflt is None:
        return None
    faults = series.majflt[warmup_tokens:]
    wall = series.wall_ms[warmup_tokens:]
    busy = wall if series.compute_ms is None else series.compute_ms[warmup_tokens:]
    if len(faults) == 0 or not (np.isfinite(faults).all() and np.isfinite(busy).all()):
        return None
    mapped = _mapped(record)
    typical = float(np.median(faults))
    limit = many_per_token if mapped is False else max(many_per_token, 10 * typical)
    many = np.flatnonzero(faults > limit)
    if len(many) == 0:
        return FaultTime(0.0, float(faults.mean()), 0, 0, 0, mapped)
    calm_ms = float(np.median(busy[faults <= typical]))
    return FaultTime(
        share=float((busy[many] - calm_ms).sum() / wall.sum()),
        per_token=float(faults.mean()),
        count=len(many),
        first=warmup_tokens + int(many[0]),
        last=warmup_tokens + int(many[-1]),
        mapped=mapped,
    )


def fault_storm(time: FaultTime | None, arm_share: float | None, *, share_pct: float) -> Finding:
    """Faults took a share of this cell's time that they did not take in its arm's other cells.

    `arm_share`: the median over the arm, None where it is too small to say. An arm that faults in
    most of its cells is slow by its settings; that is its effect, not contamination. So may be one
    whose weights are mapped, where there are no others to show it.
    """
    if time is None:
        return NOTHING
    if time.share <= share_pct / 100:
        return Finding(could_tell=True)
    words = (
        f"{time.share:.0%} of its time went into major faults in {counted(time.count, 'token')} "
        f"({time.first} to {time.last}; {time.per_token:.0f} faults per token over the cell)"
    )
    if arm_share is None:
        if time.mapped:
            return Finding(notes=(f"{words}; its weights are mapped and fault by design",))
    elif time.share - arm_share <= share_pct / 100:
        return Finding(notes=(f"{words}, as in the other cells of its arm",), could_tell=True)
    return Finding((words,), could_tell=True, stretch=(time.first, time.last))


def _mapped(record: CellRecord) -> bool | None:
    """Whether weights are read through the page cache; None where that is not known."""
    held = record.identity.dense_weights
    if record.identity.mode == "plain":
        return True
    return None if held is None else held in ("mmap", "warm")


def memory_ran_out(
    record: CellRecord, series: Series | None, warmup_tokens: int, *, floor_mib: float
) -> Finding:
    """Available memory fell below `floor_mib` (or a tenth of all, if that is less).

    A reason where nobody counted the faults that would tell what it cost; else a note, as is how
    much of the engine went to swap.
    """
    total = None if record.entry is None else record.entry.mem_total_bytes
    floor = floor_mib * MIB if total is None else min(floor_mib * MIB, total / 10)
    lowest = _lowest_available(record, series)
    reasons: list[str] = []
    notes: list[str] = []
    if lowest is not None and lowest < floor:
        words = f"available memory fell to {lowest / MIB:.0f} MiB"
        faults_known = series is not None and series.majflt is not None
        (notes if faults_known else reasons).append(words)
    swap = _finite(None if series is None else series.swap_bytes)[warmup_tokens:]
    grown = float(swap.max() - swap[0]) if len(swap) else 0.0
    if grown > _SWAP_WORTH_SAYING_MIB * MIB:
        notes.append(f"{grown / MIB:.0f} MiB of the engine went to swap while it decoded")
    return Finding(tuple(reasons), tuple(notes), could_tell=bool(reasons))


def _lowest_available(record: CellRecord, series: Series | None) -> float | None:
    values = _finite(None if series is None else series.mem_available_bytes).tolist()
    states = [s.mem_available_bytes for s in (record.entry, record.exit) if s is not None]
    known = [v for v in (*states, record.peaks.mem_available_min_bytes) if v is not None]
    return min((*values, *known), default=None)


def _finite(values: Array | None) -> Array:
    return np.empty(0) if values is None else values[np.isfinite(values)]


# --- stalls --------------------------------------------------------------------------------------


def stalls(series: Series, warmup_tokens: int, *, share_pct: float) -> Finding:
    """A few tokens that carry the mean: a note, since an arm may be what makes them.

    They are tokens of more than three times the median; what they took beyond it is counted.
    """
    wall = series.wall_ms[warmup_tokens:]
    median = float(np.median(wall))
    slow = np.flatnonzero(wall > 3 * median)
    share = float((wall[slow] - median).sum() / wall.sum())
    if len(slow) == 0 or share <= share_pct / 100:
        return NOTHING
    worst = int(np.argmax(wall))
    return Finding(
        notes=(
            f"{share:.0%} of its time is stalls of {counted(len(slow), 'token')}, the longest "
            f"{wall[worst] / 1000:.2f} s at token {warmup_tokens + worst}",
        )
    )


# --- the processor -------------------------------------------------------------------------------


def throttled_by_quota(record: CellRecord, *, share_pct: float) -> Finding:
    """A CPU quota held the engine back, which no setting of an arm asks for."""
    share = record.metrics.cpu_throttled_share
    if share is None:
        return NOTHING
    if share <= share_pct / 100:
        return Finding(could_tell=True)
    return Finding(
        (f"a CPU quota held the engine back for {share:.0%} of its time",), could_tell=True
    )
