"""One campaign, ready to run: plain data. Touches nothing but the sizes of the model's files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.schema import Config

if TYPE_CHECKING:
    from harness.device.deploy import Deployed
    from harness.models import ModelFile
    from harness.records import Plan
    from harness.targets.target import Target


@dataclass(frozen=True)
class Campaign:
    """Everything a session needs; `directory` exists and holds configuration, plan, environment."""

    directory: Path
    config: Config
    data: dict[str, Any]  # the resolved configuration as plain data
    plan: Plan
    target: Target
    deployed: Deployed
    model: ModelFile
    overrides: tuple[str, ...]  # of the command line that started or resumes it

    @property
    def model_bytes(self) -> int:
        """Of all its shards, which are here, too."""
        return sum(path.stat().st_size for path in self.model.info.shards)
