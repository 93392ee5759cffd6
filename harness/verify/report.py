"""What a verification found, for people and for machines. Pure."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import PurePath
from typing import Any

from harness.words import counted

Number = int | float


@dataclass(frozen=True)
class Check:
    """One claim about the layer: whether it holds, in words what was found, and the numbers.

    `limits` has what some of the numbers in `measured` were held against, under their names.
    """

    name: str
    ok: bool
    found: str
    measured: dict[str, Number] = field(default_factory=dict)
    limits: dict[str, Number] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """All checks of one layer."""

    model: str
    dumped_from: str  # the model as the engine was given it
    arch: str
    layer: int
    expert_types: list[str]
    n_expert: int
    top_k: int
    rows: int
    checks: list[Check]

    @property
    def ok(self) -> bool:
        """Every claim holds."""
        return all(check.ok for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Plain data; a number that is none is null."""
        data = {**asdict(self), "ok": self.ok}
        for check in data["checks"]:
            for key, value in check["measured"].items():
                if not math.isfinite(value):
                    check["measured"][key] = None
        return data

    def _other_name(self) -> str:
        """Weights decide whether a dump is of this model; a file may have been renamed."""
        if PurePath(self.dumped_from).name == PurePath(self.model).name:
            return ""
        return f", dumped from {self.dumped_from!r}"

    def text(self) -> str:
        """A line for the layer and one for each check."""
        width = max(len(check.name) for check in self.checks)
        return "\n".join(
            [
                f"{self.model}, layer {self.layer}: {self.arch}, experts in "
                f"{' and '.join(self.expert_types)}, top {self.top_k} of {self.n_expert}, "
                f"{counted(self.rows, 'row')}{self._other_name()}",
                *(
                    f"{'ok  ' if check.ok else 'FAIL'}  {check.name.ljust(width)}  {check.found}"
                    for check in self.checks
                ),
            ]
        )
