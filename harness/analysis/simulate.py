"""The drift simulator: campaigns as they would have been measured, of known truth. Pure.

A device heats while cells run and cools between them, throttles, is disturbed and short of memory
(`scenarios`, `simulated_device`); every cell decodes the same prompt, token for token. What comes
out is what a measured campaign leaves, so that the product's own code judges it, unaware.

The same seed gives the same campaign: all chance comes from numpy's PCG64, and times are rounded to
the microsecond as in a log, so that the last bit of a platform's exp() does not show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harness.analysis.scenarios import SCENARIOS, Range, Scenario
from harness.analysis.series import Array, Series
from harness.analysis.simulated_campaign import Design, simulated_identity, simulated_plan
from harness.analysis.simulated_device import LOAD_S, Device, Slowness, drawn
from harness.planned import Plan, PlannedCell
from harness.readings import Probes
from harness.records import CellRecord, Counters, Metrics, TargetId, Wait

EffectOn = Literal["all", "io", "compute", "bytes"]
Campaign = tuple[Plan, list[CellRecord], dict[int, Series]]

WARMUP_TOKENS = 16
# docs/simulator.md compares what follows with the published campaigns
_COMPUTE_MS = 104.5
_COMPUTE_LOG_SD = 0.008  # from token to token of the prompt
_IO_MS_PER_MB = 0.398
_MB_PER_TOKEN: Range = (190.0, 260.0)
_MB_LOG_SD: Range = (0.52, 0.68)
_MB_RHO: Range = (0.12, 0.48)
_ROUTED_MB = 833.0
_REQUESTS = 384
_TOKEN_LOG_SD = 0.034
_TOKEN_RHO = 0.18
_CELL_LOG_SD = 0.009
# stalls: a share of the tokens takes longer by a heavy-tailed multiple of its time
_STALL_SHARE = 0.014
_STALL_SCALE = 0.45
_STALL_TAIL = 2.1
_LONG_STALL: Range = (10.0, 250.0)
_MOST_STALL = 300.0
_FAULTS_PER_TOKEN = 0.5
_FAULTS_PER_STALL_MS = 0.3  # under full memory pressure


def simulate(
    scenario: str | Scenario,
    *,
    seed: int,
    effect_pct: float | Sequence[float] = 0.0,
    effect_on: EffectOn = "all",
    pairs: int | None = None,
    tokens: int = 96,
    spacing_s: float = 30.0,
    design: Design = "pairs",
    baseline: str = "B",
    candidates: Sequence[str] = ("C",),
    majflt: bool = True,
    prompt_seed: int | None = None,
    all_arms_pct: float = 0.0,
) -> Campaign:
    """One campaign: its plan, its records in order, and the series by the index of their cell.

    `effect_pct`: true change of tok/s after the warm-up on an undisturbed device, of every
    candidate or of each; negative is slower. `effect_on`: the part of a token's time that changes
    for it; `bytes`: reading, because more is read. `pairs`: blocks (18 unless given). `majflt`:
    whether the series have major faults, as not every log does. `prompt_seed`: campaigns of the
    same one decode the same prompt, on whatever day `seed` makes. `all_arms_pct`: change of tok/s
    of every arm, the baseline's too, as another build of the engine makes it. Raises ValueError
    where the effect cannot be had or the design cannot be made.
    """
    kind = SCENARIOS.get(scenario) if isinstance(scenario, str) else scenario
    if kind is None:
        raise ValueError(f"{scenario!r} is no scenario; there are {', '.join(SCENARIOS)}")
    if tokens <= WARMUP_TOKENS:
        raise ValueError(f"{tokens} tokens: the first {WARMUP_TOKENS} are warm-up")
    plan = simulated_plan(
        design,
        baseline=baseline,
        candidates=candidates,
        blocks=pairs,
        spacing_s=spacing_s,
        tokens=tokens,
        seed=seed,
    )
    effects = [effect_pct] * len(candidates) if isinstance(effect_pct, int | float) else effect_pct
    if len(effects) != len(candidates):
        raise ValueError(f"{len(effects)} effects for {len(candidates)} candidates")
    rng = np.random.Generator(np.random.PCG64(seed))
    own = rng if prompt_seed is None else np.random.Generator(np.random.PCG64(prompt_seed))
    prompt = _Prompt.drawn(own, tokens).changed(all_arms_pct, "all")
    prompts = {baseline: prompt} | {
        name: prompt.changed(effect, effect_on)
        for name, effect in zip(candidates, effects, strict=True)
    }
    session = _Session(
        scenario=kind,
        device=Device(kind, rng, len(plan.cells)),
        chance=_Chance.drawn(rng, len(plan.cells), tokens),
        majflt=majflt,
    )
    ran = [session.run(cell, prompts[cell.arm]) for cell in plan.cells]
    return plan, [record for record, _ in ran], {record.index: tokens for record, tokens in ran}


@dataclass(frozen=True)
class _Prompt:
    """What every cell of an arm decodes: each token's milliseconds and MB on a cool device."""

    compute_ms: Array
    io_ms: Array
    mb: Array

    @property
    def read_bytes(self) -> Array:
        return np.round(self.mb * 1e6)

    @property
    def hits(self) -> Array:
        return np.round(_REQUESTS * np.maximum(1 - self.mb / _ROUTED_MB, 0.0))

    @staticmethod
    def drawn(rng: np.random.Generator, tokens: int) -> _Prompt:
        """Bytes are log-normal and follow one another; the first tokens find the cache empty."""
        log_sd, mean_mb = drawn(rng, _MB_LOG_SD), drawn(rng, _MB_PER_TOKEN)
        logs = log_sd * _autocorrelated(rng, (1, tokens), drawn(rng, _MB_RHO))[0]
        excess = math.exp(0.7 + 0.8 * rng.standard_normal())
        fill_tokens = math.exp(0.9 + 0.8 * rng.standard_normal())
        warm_up = 1 + excess * np.exp(-np.arange(tokens) / fill_tokens)
        mb = np.minimum(mean_mb * np.exp(logs - log_sd**2 / 2) * warm_up, 0.98 * _ROUTED_MB)
        compute = _COMPUTE_MS * np.exp(_COMPUTE_LOG_SD * rng.standard_normal(tokens))
        return _Prompt(compute, _IO_MS_PER_MB * mb, mb)

    def changed(self, effect_pct: float, on: EffectOn) -> _Prompt:
        """Of an arm that is faster by `effect_pct`. Raises ValueError where that cannot be."""
        if not effect_pct > -100:
            raise ValueError(f"an effect of {effect_pct:g} % leaves no speed")
        slower = 1 / (1 + effect_pct / 100)
        if on == "all":
            return _Prompt(self.compute_ms * slower, self.io_ms * slower, self.mb)
        part = (self.compute_ms if on == "compute" else self.io_ms)[WARMUP_TOKENS:].sum()
        share = float(part / (self.compute_ms + self.io_ms)[WARMUP_TOKENS:].sum())
        factor = 1 + (slower - 1) / share
        if factor <= 0:
            raise ValueError(f"{effect_pct:g} % is more than {on}, {share:.0%} of the time, holds")
        if on == "compute":
            return _Prompt(self.compute_ms * factor, self.io_ms, self.mb)
        mb = self.mb * factor if on == "bytes" else self.mb
        return _Prompt(self.compute_ms, self.io_ms * factor, mb)


@dataclass(frozen=True)
class _Chance:
    """What happens to single tokens, by cell and token; `noise` is a factor."""

    noise: Array
    stall_draw: Array
    stall_excess: Array  # of a quiet day, times the token's own time
    long_draw: Array
    long_excess: Array
    faults: Array

    @staticmethod
    def drawn(rng: np.random.Generator, cells: int, tokens: int) -> _Chance:
        shape = (cells, tokens)
        log_noise = _TOKEN_LOG_SD * _autocorrelated(rng, shape, _TOKEN_RHO)
        log_noise += _CELL_LOG_SD * rng.standard_normal((cells, 1))
        return _Chance(
            noise=np.exp(log_noise),
            stall_draw=rng.random(shape),
            stall_excess=(1 - rng.random(shape)) ** (-1 / _STALL_TAIL) - 1,
            long_draw=rng.random(shape),
            long_excess=np.exp(
                rng.uniform(math.log(_LONG_STALL[0]), math.log(_LONG_STALL[1]), shape)
            ),
            faults=rng.poisson(_FAULTS_PER_TOKEN, shape).astype(float),
        )


@dataclass(frozen=True)
class _Session:
    scenario: Scenario
    device: Device
    chance: _Chance
    majflt: bool

    def run(self, cell: PlannedCell, prompt: _Prompt) -> tuple[CellRecord, Series]:
        """One cell, after its pause."""
        device = self.device
        device.begin(cell.wait_s)
        entry = device.state(busy=False)
        before = device.probe()
        series = self._decode(cell.index, prompt)
        device.end(device.clock_s + LOAD_S + float(series.wall_ms.sum()) / 1e3)
        after = device.probe()
        left = device.state(busy=True)
        tokens, hits = len(series), int(prompt.hits.sum())
        read_bytes = int(prompt.read_bytes.sum())
        record = CellRecord(
            cell=cell.name,
            arm=cell.arm,
            role=cell.role,
            index=cell.index,
            status="ok",
            exit_code=0,
            argv=("simulated",),
            target=TargetId("simulated", self.scenario.name),
            entry=entry,
            exit=left,
            probe=Probes(before, after),
            counters=Counters(
                tokens=tokens,
                read_bytes=read_bytes,
                hits=hits,
                misses=tokens * _REQUESTS - hits,
                requests=tokens * _REQUESTS,
            ),
            metrics=Metrics(
                tok_s=tokens / float(series.wall_ms.sum()) * 1e3,
                wall_ms_median=float(np.median(series.wall_ms)),
                hit_rate=hits / (tokens * _REQUESTS),
                bytes_per_token=read_bytes / tokens,
                load_s=LOAD_S,
                majflt_per_token=None if series.majflt is None else float(series.majflt.mean()),
            ),
            identity=simulated_identity(),
            wait=Wait(cell.wait_s, "spacing"),
            started_unix_s=entry.unix_s,
            ended_unix_s=left.unix_s,
        )
        return record, series

    def _decode(self, index: int, prompt: _Prompt) -> Series:
        """The tokens of the cell that has begun; the device's clock stands before its loading."""
        begins_s = self.device.clock_s + LOAD_S
        noise = self.chance.noise[index]
        compute_ms, io_ms = prompt.compute_ms * noise, prompt.io_ms * noise
        # when each token comes, as if nothing changed in the cell: near enough to ask the device
        now = self.device.slowness(np.array([begins_s]))
        ends_s = np.cumsum(compute_ms * now.compute + io_ms * now.io) / 1e3
        slow = self.device.slowness(begins_s + np.concatenate(([0.0], ends_s[:-1])))
        excess = self._stalls(index, slow)
        late = slow.memory * (1 + excess)
        io_ms = np.round(io_ms * slow.io * late, 3)
        compute_ms = np.round(compute_ms * slow.compute * late, 3)
        wall_ms = np.round(io_ms + compute_ms, 3)
        majflt: Array | None = None
        if self.majflt:
            stalled_ms = wall_ms * excess / (1 + excess)
            majflt = np.floor(stalled_ms * slow.pressure * _FAULTS_PER_STALL_MS)
            majflt += self.chance.faults[index]
        return Series(
            wall_ms=wall_ms,
            io_ms=io_ms,
            compute_ms=compute_ms,
            read_bytes=prompt.read_bytes,
            requests=np.full(len(wall_ms), float(_REQUESTS)),
            hits=prompt.hits,
            majflt=majflt,
        )

    def _stalls(self, index: int, slow: Slowness) -> Array:
        """By how many times its own time each token is late."""
        share: Array = np.full(len(slow.pressure), _STALL_SHARE)
        scale: Array = np.full(len(slow.pressure), _STALL_SCALE)
        long_share = 0.0
        if pressure := self.scenario.pressure:
            share = share + slow.pressure * (pressure.stall_share - _STALL_SHARE)
            scale = scale + slow.pressure * (pressure.stall_scale - _STALL_SCALE)
        if bursts := self.scenario.bursts:
            share = share * np.where(slow.burst, bursts.stall_factor, 1.0)
            long_share = bursts.long_stall_share
        excess = scale * self.chance.stall_excess[index]
        long = slow.burst & (self.chance.long_draw[index] < long_share)
        excess = excess + np.where(long, self.chance.long_excess[index], 0.0)
        stalled = self.chance.stall_draw[index] < share
        return np.where(stalled, np.minimum(excess, _MOST_STALL), 0.0)


def _autocorrelated(rng: np.random.Generator, shape: tuple[int, int], rho: float) -> Array:
    """Rows of standard normal numbers, each of which follows the one before with `rho`."""
    x: Array = rng.standard_normal(shape)
    fresh = math.sqrt(1 - rho**2)
    for t in range(1, shape[1]):
        x[:, t] = rho * x[:, t - 1] + fresh * x[:, t]
    return x
