"""Records of capped cells, written by hand, for tests of what is concluded from them."""

from __future__ import annotations

import dataclasses
from typing import Any

from harness.planned import MemoryLevel
from harness.records import ArmIdentity, CellRecord, CellStatus, Counters, Metrics, TargetId

MIB = 2**20
MODEL = ArmIdentity(
    model_sha256="m",
    engine_build_id="e",
    threads=1,
    expert_used=4,
    evict="lru",
    prompt_sha256="p",
)


def paging(
    cell: str,
    cap_mib: int | None,
    *flags: str,
    index: int = 1,
    status: CellStatus = "ok",
    metrics: Metrics | None = None,
    counters: Counters | None = None,
    **identity: Any,
) -> CellRecord:
    """A cell that pages experts; `identity`: fields that differ from a plain run of the model."""
    level = None if cap_mib is None else MemoryLevel(cell, cap_mib)
    return CellRecord(
        cell=cell if level is None else f"{cell}@{level.name}",
        arm=cell,
        role="candidate",
        index=index,
        status=status,
        exit_code=0,
        argv=("moe-engine", "-b", "128", "--moe-stream", *flags),
        target=TargetId("local", "here"),
        counters=counters or Counters(tokens=4, evictions=7),
        metrics=metrics or Metrics(),
        identity=dataclasses.replace(MODEL, **identity),
        level=level,
        data_limit_bytes=None if cap_mib is None else cap_mib * MIB,
    )


def plain(*flags: str, cell: str = "plain", index: int = 0, **changes: Any) -> CellRecord:
    """The same model through mmap."""
    record = paging(cell, None, index=index, evict=None)
    return dataclasses.replace(record, argv=("moe-engine", "-b", "128", *flags), **changes)
