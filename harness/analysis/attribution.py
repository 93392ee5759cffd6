"""Which part of a token's time carries the effect of a candidate. Pure.

The parts in the wall time (`wall_parts` says which those are) add up to it in every cell, and are
estimated by the same randomised pairs as the verdict. Beside them stand reads that ran beside
computing, and, inside computing, what page faults are estimated to have cost (`fault_cost`):
neither is added.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.attribution_words import (
    Change,
    carried_by,
    excludes_zero,
    work_in_words,
)
from harness.analysis.cell_times import cell_times
from harness.analysis.fault_cost import FaultCost, fault_cost
from harness.analysis.probe_levels import noise_of, probe_levels
from harness.analysis.randomisation import CoinTest, estimate, steady_stands
from harness.analysis.series import Array, Series
from harness.analysis.stalls_held import held_series
from harness.analysis.wall_parts import WARM_UP_TOKENS, CellParts, cell_parts
from harness.records import CellRecord
from harness.verdicts import AttributionRow, CampaignVerdict, PairRow, Part

ALPHA = 0.05
# of the change in computing: faults that make more of it carry the effect, not the rest of it
MOST_OF_COMPUTING = 0.5

# of the wall time: stalls that are held back and are said to be
STALLS_WORTH_A_WORD = 0.01

Take = Callable[[CellParts], float | None]


@dataclass(frozen=True)
class Attribution:
    """One candidate's rows, and in words what carries its effect."""

    rows: tuple[AttributionRow, ...]
    carried_by: str


@dataclass(frozen=True)
class _Compared:
    """Cells of the baseline and of one candidate in order of running, one entry each.

    `x`: 1 for the candidate. `units`: which coin decided the cell's place; of one unit there is no
    interval, and `q` is None. `probe_log`, `noise`, `q`: as the wall times are tested with, the
    same for all parts, so that they add up as their cells do. `held`: stalls are held back in the
    cells' times, and were worth a word.
    """

    cells: tuple[CellParts, ...]
    x: Array
    units: NDArray[np.int_]
    alpha: float
    probe_log: Array | None = None
    noise: Array | None = None
    q: float | None = None
    held: bool = False

    @property
    def baseline(self) -> tuple[CellParts, ...]:
        return tuple(c for c, x in zip(self.cells, self.x, strict=True) if not x)

    @property
    def candidate(self) -> tuple[CellParts, ...]:
        return tuple(c for c, x in zip(self.cells, self.x, strict=True) if x)


def with_attribution(
    verdict: CampaignVerdict,
    records: Sequence[CellRecord],
    series: Mapping[int, Series],
) -> CampaignVerdict:
    """The verdict with its attribution rows, and with what carries each candidate's effect."""
    found = {
        v.candidate: attribution_of(
            v.candidate,
            records,
            series,
            verdict.pairs,
            used=v.cells_used,
            alpha=_alpha(verdict, v.candidate),
            told=v.outcome in ("win", "loss") if verdict.pairs else None,
        )
        for v in verdict.verdicts
    }
    return dataclasses.replace(
        verdict,
        attribution=tuple(row for a in found.values() if a for row in a.rows),
        verdicts=tuple(
            dataclasses.replace(v, effect_carried_by=a.carried_by if a else None)
            for v, a in zip(verdict.verdicts, found.values(), strict=True)
        ),
    )


def _alpha(verdict: CampaignVerdict, candidate: str) -> float:
    """What the verdict's own interval was taken at, so that both tell the same from 0."""
    looks = [k.alpha for k in verdict.looks if k.candidate == candidate and k.alpha is not None]
    return looks[-1] if looks else ALPHA


def attribution_of(
    candidate: str,
    records: Sequence[CellRecord],
    series: Mapping[int, Series],
    pairs: Sequence[PairRow],
    *,
    used: Collection[int] = (),
    alpha: float = ALPHA,
    first_token: int = WARM_UP_TOKENS,
    told: bool | None = None,
) -> Attribution | None:
    """One candidate's. None where no cells of it can be compared, or their tokens have no times.

    `used`: indices of the cells that the verdict rests on; by default those of the clean pairs. In
    a design without pairs they are one pair. `alpha`: of each interval, for itself. `told`:
    whether there is an effect to be carried; None: as the wall time's own interval says.
    """
    units = _units(candidate, pairs, used)
    compared = _compare(candidate, units, records, series, alpha=alpha, first_token=first_token)
    if compared is None:
        return None
    wall = _estimated(compared, np.array([c.wall_ms for c in compared.cells]))
    work = work_in_words(compared.baseline, compared.candidate)
    cost = fault_cost(
        [series[c.index] for c in compared.cells], alpha=alpha / 2, first_token=first_token
    )
    rows = (*_split_rows(candidate, compared, work), _faulting(candidate, compared, cost))
    told = wall.told if told is None else told
    rows = _marked(rows, wall) if told else rows
    return Attribution(rows, carried_by(rows, wall, work, told=told, held=compared.held))


# --- which cells ---------------------------------------------------------------------------------


def _units(candidate: str, pairs: Sequence[PairRow], used: Collection[int]) -> dict[int, int]:
    """The unit of every cell that is compared, by its index: its block, or one for all."""
    own = [p for p in pairs if p.candidate == candidate]
    if not own:
        return dict.fromkeys(used, 0)
    units: dict[int, int] = {}
    for p in own:
        cells = (*p.baseline_cells, *p.candidate_cells)
        if set(cells) <= set(used) if used else p.status == "clean":
            units |= dict.fromkeys(cells, p.block)
    return units


def _compare(
    candidate: str,
    units: Mapping[int, int],
    records: Sequence[CellRecord],
    series: Mapping[int, Series],
    *,
    alpha: float,
    first_token: int,
) -> _Compared | None:
    """None where not one unit has the times of both arms. A unit that lacks some is left out."""
    chosen = sorted((r for r in records if r.index in units), key=lambda r: r.index)
    parts = {r.index: cell_parts(r, series.get(r.index), first_token) for r in chosen}
    lacking = {units[index] for index, p in parts.items() if p is None}
    kept = [r for r in chosen if units[r.index] not in lacking]
    cells = tuple(p for r in kept if (p := parts[r.index]) is not None)
    x = np.array([r.arm == candidate for r in kept], float)
    if not 0 < x.sum() < len(x):
        return None
    compared = _Compared(cells, x, np.array([units[r.index] for r in kept]), alpha)
    if len(set(compared.units)) < 2:
        return compared
    return _as_the_verdict(compared, kept, [series[r.index] for r in kept], first_token)


def _as_the_verdict(
    compared: _Compared,
    records: Sequence[CellRecord],
    series: Sequence[Series],
    first_token: int,
) -> _Compared:
    """With what the verdict tests the wall times with, and the times that it reads (`pair_test`):
    stalls held back, unless the plain mean contradicts.
    """
    times = cell_times(
        records, {r.index: s for r, s in zip(records, series, strict=True)}, first_token
    )
    probes = probe_levels(records)
    probe_log, noise = None if probes is None else probes.log, None
    if probes is not None and probes.move is not None and times.tokens is not None:
        noise = noise_of(times.tokens.move, probes.move)

    def tested(y: Array) -> CoinTest:
        return CoinTest(y, compared.x, compared.units, probe_log, noise=noise)

    test = mean = tested(times.mean)
    cells, held = compared.cells, False
    if times.tokens is not None:
        steady = tested(times.tokens.steady)
        if steady_stands(mean, steady, compared.alpha):
            splits = [c.split for c in cells]
            calm = held_series(series, splits, times.tokens.held_ms, first_token)
            test = steady
            cells = tuple(
                _with_times_of(c, cell_parts(r, s, 0))
                for c, r, s in zip(cells, records, calm, strict=True)
            )
            whole, left = (sum(c.wall_ms for c in of) for of in (compared.cells, cells))
            held = whole - left > STALLS_WORTH_A_WORD * whole
    fitted = test.fit()
    return dataclasses.replace(
        compared,
        cells=cells,
        probe_log=probe_log,
        noise=noise,
        q=None if fitted is None else fitted[2],
        held=held,
    )


def _with_times_of(cell: CellParts, calm: CellParts | None) -> CellParts:
    """Its work as it was; its times with stalls held back."""
    if calm is None:
        return cell
    return dataclasses.replace(
        cell,
        **{name: getattr(calm, name) for name in vars(calm) if name.endswith("_ms")},
    )


# --- rows ----------------------------------------------------------------------------------------


def _split_rows(
    candidate: str, compared: _Compared, work: str | None
) -> tuple[AttributionRow, ...]:
    """Reading, waiting, computing, managing; None: cannot be told of both arms."""
    splits = {c.split for c in compared.cells}

    def row(part: Part, in_wall: bool, take: Take, *notes: str | None) -> AttributionRow:
        change = None if "unsplit" in splits else _change(compared, take)
        note = "; ".join(n for n in notes if n) or None
        return _row(candidate, part, in_wall and change is not None, change, note)

    serial, mixed = splits == {"serial"}, len(splits) > 1
    why_not, waits = None, None
    if "unsplit" in splits:
        why_not = "reads were not recorded apart from computing"
    elif serial:
        waits = "part of reading: nothing was computed meanwhile"
    elif mixed:
        waits = "where nothing was computed meanwhile, all of reading"
    return (
        row("reading", serial, lambda c: c.reading_ms, work, why_not),
        row("waiting", True, _waiting(serial), waits),
        row("computing", True, lambda c: c.computing_ms),
        row("managing", True, lambda c: c.managing_ms),
    )


def _waiting(serial: bool) -> Take:
    if serial:
        return lambda c: None
    return lambda c: c.reading_ms if c.split == "serial" else c.waiting_ms


def _faulting(candidate: str, compared: _Compared, cost: FaultCost) -> AttributionRow:
    """Estimated, with the errors of both the cost of a fault and the change of their number."""
    faults = _change(
        dataclasses.replace(compared, alpha=compared.alpha / 2, probe_log=None), lambda c: c.faults
    )
    if faults is None:
        return _row(candidate, "faulting", False, None, "major faults were not recorded")
    if not any(c.faults for c in compared.cells):
        return _row(candidate, "faulting", False, Change(0.0, 0.0, None), "no major faults")
    count = f"{faults.baseline:.3g} to {faults.baseline + faults.change:.3g} major faults a token"
    if cost.ms is None:
        note = f"{count}; what they cost cannot be told: {cost.reason}"
        return _row(candidate, "faulting", False, None, note)
    corners = [ms * n for ms in (cost.low, cost.high) for n in faults.ci or ()]
    change = Change(
        cost.ms * faults.baseline,
        cost.ms * faults.change,
        (min(corners), max(corners)) if corners else None,
    )
    note = (
        f"{count}, {cost.ms:.3g} ms each ({cost.low:.3g} to {cost.high:.3g}), estimated within "
        "cells; inside computing"
    )
    return _row(candidate, "faulting", False, change, note)


def _row(
    candidate: str, part: Part, in_wall: bool, change: Change | None, note: str | None
) -> AttributionRow:
    if change is None:
        return AttributionRow(candidate, part, in_wall, None, None, None, note=note)
    return AttributionRow(
        candidate, part, in_wall, change.baseline, change.change, change.ci, note=note
    )


def _marked(rows: tuple[AttributionRow, ...], wall: Change) -> tuple[AttributionRow, ...]:
    """With the part that carries the effect marked, where one does.

    It is told from 0, in the direction of the wall time; of several it is the largest. Computing
    (or all that was not split) gives way to the faults inside it that make most of its change.
    """

    def moves_along(row: AttributionRow) -> bool:
        along = row.change_ms is not None and row.change_ms * wall.change > 0
        return along and excludes_zero(row.ci_ms)

    movers = [r for r in rows if r.in_wall and moves_along(r)]
    carrier = max(movers, key=lambda r: abs(r.change_ms or 0.0), default=None)
    faults = rows[-1]
    around = wall.change if carrier is None else carrier.change_ms or 0.0
    inside = not any(r.in_wall for r in rows) or (
        carrier is not None and carrier.part == "computing"
    )
    if inside and moves_along(faults) and (faults.change_ms or 0.0) / around > MOST_OF_COMPUTING:
        carrier = faults
    return tuple(dataclasses.replace(r, carries=r is carrier) for r in rows)


# --- estimates -----------------------------------------------------------------------------------


def _change(compared: _Compared, take: Take) -> Change | None:
    """Of one quantity; None where one of the cells lacks it."""
    values = [take(c) for c in compared.cells]
    known = [v for v in values if v is not None]
    return _estimated(compared, np.array(known)) if len(known) == len(values) else None


def _estimated(compared: _Compared, y: Array) -> Change:
    """`y`: one value a cell."""
    x = compared.x
    baseline = float(y[x == 0].mean())
    if compared.q is None:
        return Change(baseline, float(y[x == 1].mean() - y[x == 0].mean()), None)
    if np.ptp(y) == 0:
        return Change(baseline, 0.0, (0.0, 0.0))
    largest = float(np.max(np.abs(y)))
    # the search for an interval's ends knows logarithms: numbers of the order of 1
    e = estimate(
        y / largest,
        x,
        compared.units,
        compared.probe_log,
        alpha=compared.alpha,
        noise=compared.noise,
        q=compared.q,
    )
    low, high = e.interval
    known = None if low is None or high is None else (low * largest, high * largest)
    return Change(baseline, (e.effect or 0.0) * largest, known)
