"""The product's own verdict on many campaigns simulated on one device. Starts processes.

Every effect meets the same campaigns (the same seeds), so that a curve over effects is smooth; the
candidate is slower, which in the verdict's logarithms is the same as faster.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from harness.analysis.device_noise import DeviceNoise, simulate_device
from harness.analysis.pairs import PairSettings, pairs_verdict
from harness.looks import look_schedule
from harness.verdicts import Outcome

_BATCH = 10
_ROUND = 50
# a standard error at which a power is known well enough
_SURE_SE = 0.025
_MOST_EFFECT_PCT = 60.0
_LEAST_EFFECT_PCT = 0.1
_MOST_EXTRA_EFFECTS = 2
# neighbouring effects between which the power is read off
_NEAR = 2.1
_NORMAL = NormalDist()

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Conditions:
    """What campaigns are simulated on and judged with; `spacing_s`: None, as the device had it."""

    device: DeviceNoise
    settings: PairSettings
    spacing_s: float | None = None


@dataclass(frozen=True)
class Ending:
    """How one simulated campaign ended: after how many pairs, how many of them replaced."""

    outcome: Outcome
    pairs: int
    replaced: int
    minutes: float


@dataclass(frozen=True)
class EffectRow:
    """What became of the campaigns whose candidate truly makes `effect_pct` percent fewer tok/s.

    Shares are of all campaigns. `power`: losses, the true verdict; without an effect, wins and
    losses, all false. `power_se`: its standard error from the number of campaigns. `wrong`: wins.
    `pairs`, `minutes`: median and 90th percentile until the campaign was over, decided or not.
    `replaced`: of all pairs.
    """

    effect_pct: float
    campaigns: int
    power: float
    power_se: float
    wrong: float
    equivalent: float
    undecided: float
    pairs: tuple[int, int]
    minutes: tuple[float, float]
    replaced: float


@dataclass(frozen=True)
class Smallest:
    """The effect that has the power asked for; None: beyond what was tried.

    `se_pct`: from the number of campaigns; None with the effect, or where it is beyond.
    """

    effect_pct: float | None
    se_pct: float | None


@dataclass(frozen=True)
class Study:
    """`nothing`: no effect. `effects`: ascending, with those tried to find the smallest."""

    nothing: EffectRow
    effects: tuple[EffectRow, ...]
    smallest: Smallest
    target: float
    budget_pairs: int


def run_study(
    conditions: Conditions,
    effects_pct: Sequence[float],
    *,
    target: float,
    campaigns: int,
    seed: int,
    progress: Progress,
    batch: int = _BATCH,
) -> Study:
    """Simulate up to `campaigns` campaigns for no effect and each of the effects (percent, > 0).

    Effects are added until the power `target` is between two that are near each other. `batch`: so
    many a process simulates at once; whoever may leave early, by an exception from `progress`,
    waits for some of them.
    """
    seeds = range(seed, seed + campaigns)
    with _Workers(conditions, progress, batch) as workers:
        asked = sorted(set(effects_pct))
        found = workers.run([0.0, *asked], seeds)
        nothing = found.pop(0.0)
        rows = list(found.values())
        for _ in range(_MOST_EXTRA_EFFECTS):
            extra = effect_to_try(rows, target)
            if extra is None:
                break
            rows.append(workers.run([extra], seeds)[extra])
            rows.sort(key=lambda row: row.effect_pct)
    return Study(
        nothing=nothing,
        effects=tuple(rows),
        smallest=smallest_effect(rows, target),
        target=target,
        budget_pairs=look_schedule(1).blocks,
    )


def one_campaign(conditions: Conditions, seed: int, effect_pct: float) -> Ending:
    """Simulate and judge; the candidate makes `effect_pct` percent fewer tok/s."""
    device, settings, spacing_s = conditions.device, conditions.settings, conditions.spacing_s
    plan, records, series = simulate_device(
        device,
        seed=seed,
        effect_pct=-effect_pct,
        pairs=look_schedule(1).blocks,
        spacing_s=spacing_s,
    )
    verdict = pairs_verdict("power", plan, records, series, settings)
    read = [row for row in verdict.pairs if row.status != "incomplete"]
    last = max(i for row in read for i in (*row.baseline_cells, *row.candidate_cells))
    ended_s, began_s = records[last].ended_unix_s, records[0].started_unix_s
    return Ending(
        outcome=verdict.verdicts[0].outcome,
        pairs=len(read),
        replaced=sum(row.status == "replaced" for row in read),
        minutes=((ended_s or 0.0) - (began_s or 0.0)) / 60,
    )


def smallest_effect(rows: Sequence[EffectRow], target: float) -> Smallest:
    """Between the neighbouring effects whose powers enclose the target; rows ascending.

    Straight in ln of the effect against the normal quantile of the power.
    """
    enclosing = _enclosing(rows, target)
    if enclosing is None:
        return Smallest(None, None)
    low, high = enclosing
    a, b, wanted = _quantile(low), _quantile(high), _NORMAL.inv_cdf(target)
    x, y = math.log(low.effect_pct), math.log(high.effect_pct)
    per_quantile = (y - x) / (b - a)
    effect_pct = math.exp(min(max(x + (wanted - a) * per_quantile, x), y))
    fewest = min(low.campaigns, high.campaigns)
    quantile_se = math.sqrt(target * (1 - target) / fewest) / _NORMAL.pdf(wanted)
    return Smallest(effect_pct, effect_pct * quantile_se * per_quantile)


def effect_to_try(rows: Sequence[EffectRow], target: float) -> float | None:
    """What would show better where the power is the target; None where that is known, or hopeless.

    Rows ascending.
    """
    enclosing = _enclosing(rows, target)
    if enclosing is not None:
        low, high = (row.effect_pct for row in enclosing)
        return None if high / low <= _NEAR else round(math.sqrt(low * high), 3)
    if rows[0].power >= target:
        lower = rows[0].effect_pct / 2
        return lower if lower >= _LEAST_EFFECT_PCT else None
    higher = rows[-1].effect_pct * 2
    return higher if higher <= _MOST_EFFECT_PCT else None


def _enclosing(rows: Sequence[EffectRow], target: float) -> tuple[EffectRow, EffectRow] | None:
    for low, high in itertools.pairwise(rows):
        if low.power < target <= high.power:
            return low, high
    return None


def _quantile(row: EffectRow) -> float:
    """Of the power, kept off 0 and 1 by half a campaign."""
    return _NORMAL.inv_cdf((row.power * row.campaigns + 0.5) / (row.campaigns + 1))


def _row(effect_pct: float, endings: Sequence[Ending]) -> EffectRow:
    n = len(endings)
    share = {o: sum(e.outcome == o for e in endings) / n for o in ("win", "loss", "equivalent")}
    power = share["loss"] + (share["win"] if effect_pct == 0 else 0.0)
    # of a share that could as well have been met half a campaign off 0 or 1
    likely = (power * n + 0.5) / (n + 1)
    pairs, minutes = (
        np.quantile([getattr(e, name) for e in endings], (0.5, 0.9), method="inverted_cdf")
        for name in ("pairs", "minutes")
    )
    return EffectRow(
        effect_pct=effect_pct,
        campaigns=n,
        power=power,
        power_se=math.sqrt(likely * (1 - likely) / n),
        wrong=share["win"],
        equivalent=share["equivalent"],
        undecided=1 - sum(share.values()),
        pairs=(int(pairs[0]), int(pairs[1])),
        minutes=(float(minutes[0]), float(minutes[1])),
        replaced=sum(e.replaced for e in endings) / sum(e.pairs for e in endings),
    )


# --- processes -----------------------------------------------------------------------------------


def _end_with(parent: int) -> None:
    """A worker whose parent was killed outright would wait for work for ever."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _Workers:
    """As many processes as there are cores; none beside this one where there is one core."""

    def __init__(self, conditions: Conditions, progress: Progress, batch: int) -> None:
        self._conditions, self._progress, self._batch = conditions, progress, batch
        self._pool = (
            ProcessPoolExecutor(cores, initializer=_end_with, initargs=(os.getpid(),))
            if (cores := _cores()) > 1
            else None
        )
        self._done = self._total = 0

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def run(self, effects_pct: Sequence[float], seeds: Sequence[int]) -> dict[float, EffectRow]:
        """What became of the campaigns of these seeds under every effect.

        An effect whose power is known well enough needs no more of them; without an effect all run.
        """
        endings: dict[float, list[Ending]] = {effect: [] for effect in effects_pct}
        self._total += len(effects_pct) * len(seeds)
        wanting = list(effects_pct)
        for at in range(0, len(seeds), _ROUND):
            of_round = seeds[at : at + _ROUND]
            batches = [
                (effect, of_round[k : k + self._batch])
                for effect in wanting
                for k in range(0, len(of_round), self._batch)
            ]
            for (effect, batch), found in zip(batches, self._each(batches), strict=True):
                endings[effect] += found
                self._done += len(batch)
                self._progress(self._done, self._total)
            known = [e for e in wanting if e and _row(e, endings[e]).power_se <= _SURE_SE]
            wanting = [e for e in wanting if e not in known]
            self._total -= len(known) * (len(seeds) - at - len(of_round))
        return {effect: _row(effect, found) for effect, found in endings.items()}

    def _each(self, batches: list[tuple[float, Sequence[int]]]) -> Iterator[list[Ending]]:
        if self._pool is None:
            return (_batch(self._conditions, e, seeds) for e, seeds in batches)
        futures = [self._pool.submit(_batch, self._conditions, e, seeds) for e, seeds in batches]
        return (future.result() for future in futures)


def _batch(conditions: Conditions, effect_pct: float, seeds: Sequence[int]) -> list[Ending]:
    return [one_campaign(conditions, seed, effect_pct) for seed in seeds]


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
