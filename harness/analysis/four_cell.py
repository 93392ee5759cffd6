"""The verdict of the four-cell session: baseline, candidates, baseline again (the sentinel). Pure.

Longer sessions of the same kind have a sentinel after every second candidate.

One pair per candidate cannot give a final verdict, so the outcome is at most provisional. What it
can do is to say how far the device drifted, and refuse to read a pair whose device state differed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.counters import (
    unasked_differences,
    work_in_words,
    work_is_known,
)
from harness.analysis.device_state import (
    CpuSensor,
    StateMatch,
    cap_moves_inside,
    cpu_sensor,
    match_entry,
    states_in_order,
)
from harness.analysis.drift import DriftSettings, drift_between
from harness.analysis.usable import no_speed, out_of_place, speed, too_long_a_break
from harness.analysis.verdict_words import stalls_in_words
from harness.records import CellRecord
from harness.verdicts import CampaignVerdict, CandidateVerdict, CellVerdict, Drift, Outcome
from harness.words import counted

_MIN_TOKENS_FOR_TYPICAL = 8  # fewer than this after the warm-up, and a median says little


@dataclass(frozen=True)
class FourCellSettings:
    """Tolerances of the four-cell verdict; the defaults are the published method's.

    But for `read_probe_tolerance_pct`: direct reads vary more between two probes of a device at
    rest than the 2 % that its text allows, which fits the compute probe.

    `max_gap_s`: how much longer than its recorded pause the break before a cell may be (a campaign
    that was interrupted and resumed). `min_decode_s`: a cell that decoded for less cannot tell the
    device's speed from a hiccup. `final_command` would give a final verdict;
    None: it is not known how the cells were run.
    """

    sentinel_stable_pct: float = 5.0
    cpu_temp_tolerance_c: float = 3.0
    probe_tolerance_pct: float = 2.0
    read_probe_tolerance_pct: float = 10.0
    cap_move_pct: float = 3.0
    provisional_min_log: float = 0.10
    read_bytes_tolerance_pct: float = 0.1
    warmup_tokens: int = 16
    stall_note_pct: float = 5.0
    max_gap_s: float = 300.0
    min_decode_s: float = 1.0
    final_command: str | None = None


@dataclass(frozen=True)
class _Pair:
    """A candidate cell against one neighbouring baseline cell."""

    candidate: CellRecord
    baseline: CellRecord
    problems: tuple[str, ...]
    confounded: tuple[str, ...]
    state: StateMatch

    @property
    def readable(self) -> bool:
        return not self.problems and not self.confounded


@dataclass(frozen=True)
class _Session:
    """What every candidate of the campaign is read with."""

    cells: tuple[CellRecord, ...]
    baseline: str
    drift: Drift
    sensor: CpuSensor
    settings: FourCellSettings
    walls: Mapping[int, Sequence[float]]
    contaminated: Mapping[int, str]
    displaced: Mapping[int, str]


def four_cell_verdict(
    campaign: str,
    records: Sequence[CellRecord],
    settings: FourCellSettings,
    token_walls: Mapping[int, Sequence[float]] | None,
    examined: Sequence[CellVerdict] = (),
) -> CampaignVerdict:
    """Read a four-cell campaign.

    `token_walls`: wall time of every token in milliseconds, by the cell's index; without it the
    typical token's effect is not measured. `examined`: of the same cells; one that is contaminated
    cannot be read. Missing fields never raise: what is missing becomes a reason.
    """
    cells = tuple(sorted(records, key=lambda r: r.index))
    displaced = out_of_place(cells)
    session = _Session(
        cells=cells,
        baseline=next((c.arm for c in cells if c.role == "baseline"), "baseline"),
        drift=_drift(cells, displaced, settings),
        sensor=cpu_sensor([state for _, state in states_in_order(cells)]),
        settings=settings,
        walls=token_walls or {},
        contaminated={
            v.index: f"{v.cell} is contaminated: {'; '.join(v.reasons)}"
            for v in examined
            if v.status == "contaminated"
        },
        displaced=displaced,
    )
    arms: dict[str, list[CellRecord]] = {}
    for cell in cells:
        if cell.role == "candidate":
            arms.setdefault(cell.arm, []).append(cell)
    verdicts = tuple(_candidate(arm, own, session) for arm, own in arms.items())
    return CampaignVerdict(campaign, session.drift, verdicts)


def _drift(
    cells: Sequence[CellRecord], displaced: Mapping[int, str], settings: FourCellSettings
) -> Drift:
    """Of the opening baseline and every sentinel; the last of them must have a speed."""
    opening = next((c for c in cells if c.role == "baseline"), None)
    sentinels = [c for c in cells if c.role == "sentinel"]
    if opening is None or not sentinels:
        absent = "opening baseline" if opening is None else "sentinel"
        return Drift("unknown", None, (f"there is no {absent} cell",))
    unusable = [p for c in (opening, sentinels[-1]) for p in _not_usable(c, settings)]
    # a drift is one between the places of these cells
    unusable += [displaced[c.index] for c in (opening, *sentinels) if c.index in displaced]
    if unusable:
        return Drift("unknown", None, tuple(unusable))
    return drift_between(
        opening,
        [c for c in sentinels if not _not_usable(c, settings)],
        cells,
        DriftSettings(settings.sentinel_stable_pct, settings.read_bytes_tolerance_pct),
    )


# --- candidates ----------------------------------------------------------------------------------


def _candidate(arm: str, own: Sequence[CellRecord], session: _Session) -> CandidateVerdict:
    pairs = [
        _pair(c, neighbour, session)
        for c in own
        for neighbour in session.cells
        if neighbour.role in ("baseline", "sentinel") and abs(neighbour.index - c.index) == 1
    ]
    outcome: Outcome = "unreadable"
    reasons: list[str] = []
    if any(p.confounded for p in pairs):
        outcome = "confounded"
        reasons += [r for p in pairs for r in p.confounded]
    unusable = [_not_usable(c, session.settings) for c in own]
    if session.drift.verdict == "not_comparable" and not all(unusable):
        outcome = "contaminated"
        reasons += ["the baseline cells did not do the same work", *session.drift.reasons]
    if session.drift.verdict == "unknown":
        reasons.append("the drift is unknown, so no difference can be told from it")
        reasons += session.drift.reasons
    readable = [p for p in pairs if p.readable]
    if readable and not reasons:
        return _read(min(readable, key=lambda p: p.state.distance), pairs, session)

    reasons += [problem for problems in unusable for problem in problems]
    if not pairs:
        reasons += [_not_adjacent(c, session.cells) for c in own]
    reasons += [r for p in pairs for r in p.problems]
    return CandidateVerdict(
        candidate=arm,
        baseline=session.baseline,
        outcome=outcome,
        reasons=(*dict.fromkeys(reasons), *_sensor_notes(session.sensor), _closing(session)),
    )


def _pair(candidate: CellRecord, baseline: CellRecord, session: _Session) -> _Pair:
    settings = session.settings
    state = match_entry(
        candidate,
        baseline,
        session.sensor,
        temp_tolerance_c=settings.cpu_temp_tolerance_c,
        probe_tolerance_pct=settings.probe_tolerance_pct,
        read_probe_tolerance_pct=settings.read_probe_tolerance_pct,
    )
    problems = [
        *_not_usable(candidate, settings),
        *_not_usable(baseline, settings),
        *state.problems,
    ]
    for cell in (candidate, baseline):
        problems += cap_moves_inside(cell, settings.cap_move_pct)
        problems += [
            found[cell.index]
            for found in (session.contaminated, session.displaced)
            if cell.index in found
        ]
    problems += too_long_a_break(candidate, baseline, settings.max_gap_s)
    tokens = (candidate.counters.tokens, baseline.counters.tokens)
    if tokens[0] != tokens[1]:
        problems.append(
            f"{candidate.cell} made {counted(tokens[0], 'token')}, "
            f"{baseline.cell} {counted(tokens[1], 'token')}: not the same task"
        )
    unasked = unasked_differences(candidate, baseline)
    problems += unasked.one_sided
    return _Pair(
        candidate,
        baseline,
        tuple(f"against {baseline.cell}: {p}" for p in problems),
        tuple(f"{d}, which nobody asked for" for d in unasked.differing),
        state,
    )


def _read(best: _Pair, pairs: Sequence[_Pair], session: _Session) -> CandidateVerdict:
    """Effect, its size against the device's own movement, and what that allows to say."""
    settings, c, b = session.settings, best.candidate, best.baseline
    log_ratio = math.log(speed(c) / speed(b))
    drift_pct = session.drift.sentinel_change_pct or 0.0
    bar, bar_words = max(
        (settings.provisional_min_log, "the least that two single cells can show"),
        (abs(math.log1p(drift_pct / 100)), f"the session's own drift of {drift_pct:+.1f} %"),
        (best.state.log_probe_gap or 0.0, "the difference of the two cells' probes"),
    )
    outcome: Outcome = "inconclusive"
    if abs(log_ratio) > bar:
        outcome = "provisional_win" if log_ratio > 0 else "provisional_loss"
    effect_pct = math.expm1(log_ratio) * 100
    reasons = [
        f"{c.cell} {speed(c):.2f} tok/s against {b.cell} {speed(b):.2f} tok/s: "
        f"{effect_pct:+.1f} %, {'not ' if outcome == 'inconclusive' else ''}beyond {bar_words} "
        f"({math.expm1(-bar) * 100:+.1f} % to {math.expm1(bar) * 100:+.1f} %)",
        f"same device state at entry as {b.cell}: {'; '.join(best.state.agreed)}",
    ]
    others = [p.baseline.cell for p in pairs if p.readable and p is not best]
    if others:
        reasons.append(
            f"{b.cell} is read rather than {', '.join(others)}: its device state is the closer one"
        )
    reasons += [f"not read {problem}" for p in pairs if not p.readable for problem in p.problems]
    reasons += _sensor_notes(session.sensor)
    reasons += work_in_words(c, b)
    if not work_is_known(c):
        reasons.append("token counts were not recorded: an equal task is assumed")
    typical_pct, note = _typical(session.walls.get(c.index), session.walls.get(b.index), settings)
    if note:
        reasons.append(note)
    if outcome == "inconclusive":
        reasons.append(_what_it_takes(bar, settings))
    return CandidateVerdict(
        candidate=c.arm,
        baseline=session.baseline,
        outcome=outcome,
        effect_pct=effect_pct,
        typical_token_effect_pct=typical_pct,
        cells_used=tuple(sorted((c.index, b.index))),
        reasons=(*reasons, _closing(session)),
    )


def _typical(
    c: Sequence[float] | None, b: Sequence[float] | None, settings: FourCellSettings
) -> tuple[float | None, str | None]:
    """Change of the median token's speed after the warm-up (percent), and a note on stalls."""
    steady = [
        [w for w in (walls or ())[settings.warmup_tokens :] if math.isfinite(w) and w > 0]
        for walls in (c, b)
    ]
    if min(len(s) for s in steady) < _MIN_TOKENS_FOR_TYPICAL:
        return None, "the typical token's effect is not measured: too few tokens after the warm-up"
    typical_pct = (statistics.median(steady[1]) / statistics.median(steady[0]) - 1) * 100
    mean_pct = (statistics.fmean(steady[1]) / statistics.fmean(steady[0]) - 1) * 100
    if abs(mean_pct - typical_pct) > settings.stall_note_pct:
        words = stalls_in_words(mean_pct, typical_pct)
        return typical_pct, f"{words} (from token {settings.warmup_tokens} on)"
    return typical_pct, None


# --- words ---------------------------------------------------------------------------------------


def _what_it_takes(bar: float, settings: FourCellSettings) -> str:
    least = f"an effect beyond {math.expm1(bar) * 100:.1f} %"
    if bar <= settings.provisional_min_log:
        return f"this design needs {least}; a smaller one takes repeated pairs in random order"
    return f"on this device state it would take {least}, or a session that drifts less"


def _closing(session: _Session) -> str:
    command = session.settings.final_command
    how = "randomised pairs do (design=pairs)" if command is None else f"this does: {command}"
    return f"a four-cell session never gives a final verdict; {how}"


def _sensor_notes(sensor: CpuSensor) -> tuple[str, ...]:
    return tuple(f"sensor rejected: {r}" for r in sensor.rejected)


def _not_adjacent(candidate: CellRecord, cells: Sequence[CellRecord]) -> str:
    neighbours = [c.cell for c in cells if abs(c.index - candidate.index) == 1]
    return (
        f"{candidate.cell} has no baseline cell next to it (neighbours: "
        f"{', '.join(neighbours) or 'none'})"
    )


def _not_usable(cell: CellRecord, settings: FourCellSettings) -> list[str]:
    problems = no_speed(cell)
    if problems:
        return problems
    tokens = cell.counters.tokens
    if tokens is not None and tokens / speed(cell) < settings.min_decode_s:
        return [
            f"{cell.cell} decoded for {tokens / speed(cell):.2f} s, too short to tell the device's "
            f"speed from a hiccup ({settings.min_decode_s:g} s at least); raise cell.n_predict"
        ]
    return []
