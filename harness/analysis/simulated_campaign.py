"""What simulated campaigns share with planned ones: order, coins, identity. Pure.

The coins are those of `random.Random(seed)`, as `records.Coins` says.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from harness.plan import four_cell
from harness.records import Arm, ArmIdentity, Coins, EngineSettings, Plan, PlannedCell

Design = Literal["pairs", "abba", "four_cell"]
PAIRS = 18


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
        orders = _orders(names, PAIRS if blocks is None else blocks, seed)
        coins = Coins(seed, orders)
        cells = _in_blocks(design, orders, baseline, spacing_s)
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


def _orders(names: Sequence[str], blocks: int, seed: int) -> tuple[tuple[str, ...], ...]:
    if blocks < 1:
        raise ValueError(f"a campaign has at least one block, not {blocks}")
    coin = random.Random(seed)  # noqa: S311 - to be drawn again, not to be secret
    return tuple(tuple(coin.sample(names, len(names))) for _ in range(blocks))


def _in_blocks(
    design: Design, orders: Sequence[tuple[str, ...]], baseline: str, spacing_s: float
) -> tuple[PlannedCell, ...]:
    cells: list[PlannedCell] = []
    for block, order in enumerate(orders):
        for arm in order if design == "pairs" else (*order, *reversed(order)):
            cells.append(
                PlannedCell(
                    index=len(cells),
                    name=arm,
                    arm=arm,
                    role="baseline" if arm == baseline else "candidate",
                    wait_s=spacing_s if cells else 0.0,
                    block=block,
                )
            )
    return tuple(cells)
