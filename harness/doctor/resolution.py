"""How small an effect a device can tell, within the budgets of the designs. Simulates, for a while.

By `power` on the A/A's own cells, in a bounded time; where that is not to be had, by a rule of
thumb, and then it says so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from harness.analysis.device_noise import DeviceNoise
from harness.analysis.pairs import PairSettings
from harness.doctor.noise import Noise
from harness.looks import look_schedule
from harness.power.study import Conditions, Study, run_study

POWER = 0.8
# a quarter of what `power` takes by default: a standard error of 6 % at that power
_CAMPAIGNS = 40
# those under way are waited for when time is up, or on Ctrl-C
_BATCH = 2
# Standard errors of the mean of the last look's pairs, each of two cells: Student's t with their 11
# degrees of freedom at the error that this look may spend (0.0225, both sides) and at the power.
# On three simulated quiet devices 0.8 to 0.9 of what the simulation says.
_SIGMAS = (2.64 + 0.88) * math.sqrt(2)
_LEAST_PCT, _MOST_PCT = 0.5, 30.0
# of the spread, beyond which one figure would be a guess
_MOST_LOG_SD = 0.5


class _OutOfTime(Exception):  # noqa: N818 - its bound, not a fault
    """The simulation takes too long."""


@dataclass(frozen=True)
class Resolution:
    """The smallest effect that campaigns of pairs see in POWER of all cases within their budget.

    `smallest_pct` None: below `below_pct`, or above `above_pct`. `se_pct`: of the simulation.
    `likely_pct`: where it may lie, as the cells show the device's spread no better than that.
    `budget_min`: what the whole budget of pairs takes, with `spacing_s` between cells of `cell_s`.
    `false_share`: wins and losses where there is no effect; `replaced`: share of pairs. Both, and
    `typical_min`, only where it was simulated. `why_rough`: why it was not.
    """

    method: Literal["simulated", "rough"]
    smallest_pct: float | None
    budget_pairs: int
    spacing_s: float
    se_pct: float | None = None
    likely_pct: tuple[float, float] | None = None
    below_pct: float | None = None
    above_pct: float | None = None
    budget_min: float | None = None
    cell_s: float | None = None
    typical_min: float | None = None
    false_share: float | None = None
    replaced: float | None = None
    campaigns: int | None = None
    why_rough: str | None = None


def resolve(
    noise: Noise,
    device: DeviceNoise | None,
    settings: PairSettings,
    *,
    spacing_s: float,
    seconds: float,
    progress: Callable[[int, int], None],
    clock: Callable[[], float] = time.monotonic,
) -> Resolution | None:
    """None: too few cells for any figure. `seconds`: so long it may simulate; 0: not at all."""
    if device is None:
        return _rough(noise, None, spacing_s, "too few cells to simulate from")
    if seconds <= 0:
        return _rough(noise, device, spacing_s, "the simulation was left out")
    ends = clock() + seconds

    def bounded(done: int, total: int) -> None:
        progress(done, total)
        if clock() > ends:
            raise _OutOfTime

    first = min(max(_thumb_pct(device.between_cells_log_sd), _LEAST_PCT), _MOST_PCT)
    try:
        study = run_study(
            Conditions(device, settings, spacing_s),
            [round(first, 2), round(2 * first, 2)],
            target=POWER,
            campaigns=_CAMPAIGNS,
            seed=0,
            progress=bounded,
            batch=_BATCH,
        )
    except _OutOfTime:
        return _rough(noise, device, spacing_s, f"the simulation was not done in {seconds:g} s")
    except KeyboardInterrupt:
        return _rough(noise, device, spacing_s, "the simulation was interrupted")
    return _simulated(study, noise, device, spacing_s)


def _simulated(study: Study, noise: Noise, device: DeviceNoise, spacing_s: float) -> Resolution:
    rows, small = study.effects, study.smallest
    known = small.effect_pct is not None
    seen_at_once = rows[0].power >= study.target
    above = next((r for r in rows if r.power >= study.target), None)
    return Resolution(
        method="simulated",
        smallest_pct=small.effect_pct,
        se_pct=small.se_pct,
        likely_pct=_likely_pct(noise, small.effect_pct),
        below_pct=rows[0].effect_pct if not known and seen_at_once else None,
        above_pct=rows[-1].effect_pct if not known and not seen_at_once else None,
        budget_pairs=study.budget_pairs,
        budget_min=study.budget_pairs * _pair_min(device, spacing_s),
        cell_s=device.cell_s,
        typical_min=None if above is None else above.minutes[0],
        spacing_s=spacing_s,
        false_share=study.nothing.power,
        replaced=study.nothing.replaced,
        campaigns=study.nothing.campaigns,
    )


def _rough(
    noise: Noise, device: DeviceNoise | None, spacing_s: float, why: str
) -> Resolution | None:
    if noise.spread is None:
        return None
    log_sd = noise.spread.log_sd
    pairs = look_schedule(1).blocks
    smallest = _thumb_pct(log_sd) if log_sd <= _MOST_LOG_SD else None
    return Resolution(
        method="rough",
        smallest_pct=smallest,
        likely_pct=_likely_pct(noise, smallest),
        above_pct=None if log_sd <= _MOST_LOG_SD else _thumb_pct(_MOST_LOG_SD),
        budget_pairs=pairs,
        budget_min=None if device is None else pairs * _pair_min(device, spacing_s),
        cell_s=None if device is None else device.cell_s,
        spacing_s=spacing_s,
        why_rough=why,
    )


def _likely_pct(noise: Noise, smallest_pct: float | None) -> tuple[float, float] | None:
    """An effect that can be told grows with the spread, and so does what is not known of it."""
    spread = noise.spread
    if smallest_pct is None or spread is None or spread.log_sd <= 0:
        return None
    low, high = (smallest_pct * bound / spread.log_sd for bound in spread.interval)
    return low, high


def _thumb_pct(log_sd: float) -> float:
    """By the last look's pairs, as if all were clean and normal."""
    pairs = look_schedule(1).looks[-1].clean_pairs
    return math.expm1(_SIGMAS * log_sd / math.sqrt(pairs)) * 100


def _pair_min(device: DeviceNoise, spacing_s: float) -> float:
    return 2 * (device.cell_s + device.gap_s + spacing_s) / 60
