"""Designs of experiments: which cells in which order, and the engine settings of every arm.

Pure: configuration and the model's numbers in, a Plan out. Touches nothing.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from harness.errors import UsageError
from harness.looks import look_schedule
from harness.memory_config import MAX_LEVEL_MB, MemoryConfig
from harness.planned import (
    Arm,
    Coins,
    EngineSettings,
    GivenBinary,
    GivenText,
    MemoryLevel,
    Plan,
    PlannedCell,
    Role,
)
from harness.schema import BLOCK_DESIGNS, SENTINEL, CellConfig, Config, candidates_of
from harness.words import counted

MIB = 2**20


# What a slot of the engine's cache needs beyond its expert: each of up to three parts is read in
# whole 4 KiB blocks, with up to one block wasted at either end.
SLOT_PADDING_BYTES = 3 * 2 * 4096


class ModelNumbers(Protocol):
    """What the plan needs to know of the model; `harness.models` reads it from the file."""

    @property
    def n_expert(self) -> int:
        """Routed experts in each MoE layer."""

    @property
    def layer_expert_bytes(self) -> tuple[int, ...]:
        """Bytes of all routed experts of each MoE layer."""

    @property
    def n_ctx_train(self) -> int | None:
        """Longest context the model was trained for, None where the file does not say."""

    @property
    def file_bytes(self) -> int:
        """Bytes of the file, all shards together."""


def make_plan(
    config: Config,
    model: ModelNumbers | None,
    cores: int,
    texts: Mapping[str, GivenText],
    binaries: Mapping[str, GivenBinary] | None = None,
) -> Plan:
    """The ordered campaign that `config` asks for on a machine with `cores` cores.

    `texts`: what each `text` and `perplexity` of a cell stands for; `binaries`: each `binary`.
    Without a model, for a plan that is only shown: nothing is checked against it, and a cache or a
    limit that is a fraction of it stays None.
    """
    baseline, candidates = config.design.baseline, candidates_of(config)
    spacing_s = config.schedule.spacing_s
    names = candidates if baseline is None else (baseline, *candidates)
    if config.design.kind == "levels":
        made = [
            _arm(name, config, model, cores, texts, level=level)
            for name, level in _cells_at_levels(names, config, model)
        ]
        candidates = tuple(arm.name for arm in made)
    else:
        made = [_arm(name, config, model, cores, texts) for name in names]
    for i, arm in enumerate(made):
        binary = config.cells[arm.cell].binary
        if binary is not None:
            made[i] = dataclasses.replace(arm, binary=(binaries or {})[binary])
    coins = None
    if baseline is None:
        cells = survey(candidates, spacing_s)
    elif config.design.kind in BLOCK_DESIGNS:
        coins = toss(names, _pairs_in_all(config, len(candidates)), config.design.seed)
        cells = blocks_of(coins, baseline, spacing_s, and_back=config.design.kind == "abba")
    else:
        cells = four_cell(baseline, candidates, spacing_s)
    return Plan(
        design=config.design.kind,
        arms={arm.name: arm for arm in made},
        cells=cells,
        baseline=baseline,
        candidates=candidates,
        coins=coins,
    )


def four_cell(
    baseline: str, candidates: tuple[str, ...], spacing_s: float
) -> tuple[PlannedCell, ...]:
    """B, C1, C2, B: the closing baseline is the sentinel that shows drift.

    With more candidates the baseline returns after every second one (B, C1, C2, B, C3, B): only
    cells next to each other may be compared, so that without it those in the middle could not be.
    """
    order: list[tuple[str, str, Role]] = [(baseline, baseline, "baseline")]
    for i in range(0, len(candidates), 2):
        order += [(name, name, "candidate") for name in candidates[i : i + 2]]
        last = i + 2 >= len(candidates)
        name = SENTINEL if last else f"{SENTINEL}_{i // 2 + 1}"
        order.append((name, baseline, "sentinel"))
    return _spaced(order, spacing_s)


def _pairs_in_all(config: Config, n_candidates: int) -> int:
    """As asked, within what the looks of the verdict can use."""
    asked, most = config.design.pairs, look_schedule(n_candidates).blocks
    if asked is not None and asked > most:
        raise UsageError(
            f"design.pairs: {asked} is more than the looks of the verdict use; at most {most} "
            f"for {counted(n_candidates, 'candidate')}"
        )
    return asked or most


def toss(arms: Sequence[str], blocks: int, seed: int | None) -> Coins:
    """A random order of `arms` for every block, drawn before anything runs.

    Without a `seed` one is drawn; either way it is part of the plan, and gives the same orders.
    """
    if seed is None:
        seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)  # noqa: S311 - to be repeatable is the point
    return Coins(seed, tuple(tuple(rng.sample(arms, len(arms))) for _ in range(blocks)))


def blocks_of(
    coins: Coins, baseline: str, spacing_s: float, *, and_back: bool
) -> tuple[PlannedCell, ...]:
    """Block after block in the order drawn: B C, or C B; `and_back`: B C C B, or C B B C.

    A cell is called after its arm and its block, counted from 1.
    """
    cells: list[PlannedCell] = []
    for block, order in enumerate(coins.orders):
        runs = [*order, *reversed(order)] if and_back else list(order)
        for i, arm in enumerate(runs):
            half = "" if not and_back else "a" if i < len(order) else "b"
            cells.append(
                PlannedCell(
                    index=len(cells),
                    name=f"{arm}_{block + 1:02d}{half}",
                    arm=arm,
                    role="baseline" if arm == baseline else "candidate",
                    wait_s=spacing_s if cells else 0.0,
                    block=block,
                )
            )
    return tuple(cells)


def survey(arms: tuple[str, ...], spacing_s: float) -> tuple[PlannedCell, ...]:
    """Every arm once, in order; no baseline and no sentinel, so no speed to be compared."""
    return _spaced([(name, name, "candidate") for name in arms], spacing_s)


def _spaced(order: Sequence[tuple[str, str, Role]], spacing_s: float) -> tuple[PlannedCell, ...]:
    return tuple(
        PlannedCell(index=i, name=name, arm=arm, role=role, wait_s=spacing_s if i else 0.0)
        for i, (name, arm, role) in enumerate(order)
    )


def cache_mib(fraction: float, model: ModelNumbers) -> int:
    """The fewest whole MiB that surely hold `fraction` of the model's experts at once.

    The engine gives experts of different sizes slots of their own size, each size its share.
    """
    layers_of = Counter(-(-layer // model.n_expert) for layer in model.layer_expert_bytes)
    needed = 0
    for expert_bytes, n_layer in layers_of.items():
        slots = math.ceil(fraction * n_layer * model.n_expert - 1e-9)
        needed += slots * (expert_bytes + SLOT_PADDING_BYTES)
    return -(-needed // MIB)


def share_mib(share: float, model: ModelNumbers) -> int:
    """Whole MiB, at least one, that are `share` of the model's file."""
    return max(1, round(share * model.file_bytes / MIB))


def _cells_at_levels(
    names: Sequence[str], config: Config, model: ModelNumbers | None
) -> list[tuple[str, MemoryLevel | None]]:
    """Uncapped cells once; then level by level, so that cells at one level are neighbours."""
    capped = [name for name in names if config.cells[name].capped]
    once: list[tuple[str, MemoryLevel | None]] = [(n, None) for n in names if n not in capped]
    rungs = _ladder(config, model)
    return once + [
        (n, MemoryLevel(n, limit_mb, share)) for limit_mb, share in rungs for n in capped
    ]


def _ladder(config: Config, model: ModelNumbers | None) -> list[tuple[int | None, float | None]]:
    """Every level in MiB, and as the share of the model's file that it was given as."""
    design = config.design
    if design.levels_mb is not None:
        return [(level, None) for level in design.levels_mb]
    shares = design.levels or ()
    if model is None:
        return [(None, share) for share in shares]
    rungs: list[tuple[int | None, float | None]] = [
        (share_mib(share, model), share) for share in shares
    ]
    for i, (limit_mb, share) in enumerate(rungs):
        if limit_mb is not None and limit_mb > MAX_LEVEL_MB:
            raise UsageError(
                f"design.levels: {share:g} of this model is {limit_mb} MiB; "
                f"the engine takes at most {MAX_LEVEL_MB}"
            )
        for other_mb, other in rungs[:i]:
            if limit_mb == other_mb:
                raise UsageError(
                    f"design.levels: {other:g} and {share:g} of this model are both {limit_mb} "
                    "MiB; leave one out, or use design.levels_mb"
                )
    return rungs


def _arm(
    name: str,
    config: Config,
    model: ModelNumbers | None,
    cores: int,
    texts: Mapping[str, GivenText],
    *,
    level: MemoryLevel | None = None,
) -> Arm:
    cell = config.cells[name]
    key, flags = f"cells.{name}", cell.engine
    if model is not None:
        _check_against(model, key, cell)
    if flags.threads is not None and flags.threads > cores:
        raise UsageError(
            f"{key}.engine.threads: {flags.threads} on a machine with {cores} cores; "
            f"ggml's threads spin while they wait: use 1 to {cores}"
        )
    same = vars(flags).keys() - {"threads", "cache_mb", "cache_fraction", "ram_budget_mb"}
    cache_mb = flags.cache_mb
    if flags.cache_fraction is not None and model is not None:
        cache_mb = cache_mib(flags.cache_fraction, model)
    settings = EngineSettings(
        threads=flags.threads or max(1, cores - 1),
        n_ctx=cell.n_ctx,
        n_batch=cell.n_batch,
        cache_mb=cache_mb,
        ram_budget_mb=level.limit_mb if level and flags.moe_stream else flags.ram_budget_mb,
        **{key: getattr(flags, key) for key in same},
    )
    return _limited(
        Arm(
            name=name if level is None else f"{name}@{level.name}",
            engine=settings,
            prompt=cell.prompt,
            n_predict=cell.n_predict,
            text=None if cell.text is None else texts[cell.text],
            perplexity=None if cell.perplexity is None else texts[cell.perplexity],
            perplexity_chunks=cell.perplexity_chunks,
            seed=cell.seed,
            time_limit_s=cell.time_limit_s,
            level=level,
        ),
        config.memory,
        cell,
        model,
    )


def _limited(arm: Arm, memory: MemoryConfig, cell: CellConfig, model: ModelNumbers | None) -> Arm:
    """The arm with the limits that hold for its cell, as far as they are known."""
    if not cell.capped:
        return arm
    if arm.level is not None:
        limit_mb = arm.level.limit_mb
    elif memory.limit_share is not None:
        arm = dataclasses.replace(arm, limit_share=memory.limit_share)
        beside = memory.limit_beside_mb
        limit_mb = None if model is None else share_mib(memory.limit_share, model) + beside
    else:
        limit_mb = memory.limit_mb
    if limit_mb is None:
        return arm
    arm = dataclasses.replace(arm, data_limit_bytes=limit_mb * MIB)
    mode = memory.cgroup or ("off" if arm.level is None else "wanted")
    if mode == "off":
        return arm
    allowed = (limit_mb + memory.cgroup_headroom_mb) * MIB
    return dataclasses.replace(arm, cgroup_limit_bytes=allowed, cgroup_mode=mode)


def _check_against(model: ModelNumbers, key: str, cell: CellConfig) -> None:
    expert_used = cell.engine.expert_used
    if expert_used is not None and expert_used > model.n_expert:
        raise UsageError(
            f"{key}.engine.expert_used: {expert_used} is more than the model's "
            f"{model.n_expert} experts; use 1 to {model.n_expert}"
        )
    if model.n_ctx_train is not None and cell.n_ctx > model.n_ctx_train:
        raise UsageError(
            f"{key}.n_ctx: {cell.n_ctx} is more than the model was trained for; "
            f"use at most {model.n_ctx_train}"
        )
