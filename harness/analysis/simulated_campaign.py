"""What simulated campaigns share with planned ones: order, coins, identity. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from harness.looks import look_schedule
from harness.plan import blocks_of, four_cell, toss
from harness.planned import Arm, Coins, EngineSettings, Plan
from harness.records import ArmIdentity

Design = Literal["pairs", "abba", "four_cell"]


def simulated_plan(
    design: Design,
    *,
    baseline: str,
    candidates: Sequence[str],
    blocks: int | None,
    spacing_s: float,
    tokens: int,
    seed: int,
) -> Plan:
    """The plan of one simulated campaign of `blocks` blocks (None: the shipped budget of 18).

    Raises ValueError where a name comes twice, nothing is compared, or four_cell is given blocks.
    """
    names = (baseline, *candidates)
    if not candidates or len(set(names)) != len(names):
        raise ValueError(f"a baseline and other candidates are needed, not {', '.join(names)}")
    coins: Coins | None = None
    if design == "four_cell":
        if blocks is not None:
            raise ValueError("four_cell has no blocks")
        cells = four_cell(baseline, tuple(candidates), spacing_s)
    else:
        wanted = look_schedule(1).blocks if blocks is None else blocks
        if wanted < 1:
            raise ValueError(f"a campaign has at least one block, not {wanted}")
        coins = toss(names, wanted, seed)
        cells = blocks_of(coins, baseline, spacing_s, and_back=design == "abba")
    engine = EngineSettings(threads=4, n_ctx=4096, n_batch=512, moe_stream=True, cache_mb=4000)
    return Plan(
        design=design,
        arms={name: Arm(name, engine, "simulated", tokens) for name in names},
        cells=cells,
        baseline=baseline,
        candidates=tuple(candidates),
        coins=coins,
    )


def simulated_identity() -> ArmIdentity:
    """Of every arm alike: what a simulated candidate changes is its speed, or its bytes."""
    return ArmIdentity(
        model_sha256="0" * 64,
        engine_build_id="simulated",
        mode="stream",
        cache_mb=4000,
        direct_io=True,
        threads=4,
    )
