"""Small plans and arms for tests of whatever runs or reads cells."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.build.types import EngineBuild
from harness.device.preflight import check_arm, scratch_dir
from harness.plan import MIB, SLOT_PADDING_BYTES
from harness.planned import Arm, EngineSettings, Plan, PlannedCell
from harness.targets.local import LocalTarget

FAKE_ENGINE = Path(__file__).resolve().parent / "fake_engine.py"
STREAM = EngineSettings(
    threads=1, n_ctx=64, n_batch=16, moe_stream=True, cache_mb=8, io_threads=2, direct_io=True
)
PLAIN = EngineSettings(threads=1, n_ctx=64, n_batch=16)


@dataclass(frozen=True)
class Numbers:
    """What a plan needs to know of a model; a slot takes 3 MiB."""

    n_expert: int = 32
    expert_bytes: tuple[int, ...] = (3 * MIB - SLOT_PADDING_BYTES,) * 8  # of one in each MoE layer
    n_ctx_train: int | None = 4096
    file_bytes: int = 800 * MIB

    @property
    def layer_expert_bytes(self) -> tuple[int, ...]:
        return tuple(self.n_expert * one for one in self.expert_bytes)


def make_arm(name: str = "baseline", n_predict: int = 4, **behaviour: Any) -> Arm:
    """An arm of the fake engine; `behaviour` is what its prompt asks of it."""
    return Arm(name=name, engine=STREAM, prompt=json.dumps(behaviour), n_predict=n_predict)


def make_plan(*arms: Arm, wait_s: float = 0.0) -> Plan:
    """Each arm once in this order, then the first again as the sentinel."""
    order = [*arms, arms[0]]
    roles = ["baseline", *["candidate"] * (len(arms) - 1), "sentinel"]
    cells = tuple(
        PlannedCell(
            index=i,
            name="sentinel" if role == "sentinel" else arm.name,
            arm=arm.name,
            role=role,  # type: ignore[arg-type]
            wait_s=wait_s if i else 0.0,
        )
        for i, (arm, role) in enumerate(zip(order, roles, strict=True))
    )
    return Plan(
        design="four_cell",
        arms={arm.name: arm for arm in arms},
        cells=cells,
        baseline=arms[0].name,
        candidates=tuple(arm.name for arm in arms[1:]),
    )


def with_engine(arm: Arm, **settings: Any) -> Arm:
    """The arm with other engine settings."""
    return dataclasses.replace(arm, engine=dataclasses.replace(arm.engine, **settings))


def asked_here(engine: Path, model: Path, arm: Arm) -> int | None:
    """What the preflight says of an arm on this machine."""
    target = LocalTarget("here")
    with scratch_dir(target, Path("campaign")) as scratch:
        return check_arm(target, engine, model, arm, scratch)


def fake_build(launcher: Path) -> EngineBuild:
    """The fake engine with this launcher."""
    return EngineBuild(FAKE_ENGINE, launcher, "fake", None, "given")
