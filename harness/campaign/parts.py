"""One campaign, ready to run: plain data. Touches nothing but the sizes of the model's files."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.rundir import Sweep
from harness.schema import Config

if TYPE_CHECKING:
    from harness.device.deploy import Deployed
    from harness.events import SessionEvent
    from harness.measuring import EarlierCell
    from harness.models import ModelFile
    from harness.planned import Plan
    from harness.targets.target import Target


@dataclass
class Member:
    """What a campaign knows of the sweep that it is one of; alone it is one of none.

    `began`: told of its directory once it can be resumed. `cell_ended`: on the monotonic clock, of
    the last cell of this campaign or of one before it in the sweep, None before the first.
    """

    sweep: Sweep | None = None
    began: Callable[[Path], None] = lambda _directory: None
    cell_ended: float | None = None

    def heard(self, tell: Callable[[SessionEvent], None]) -> Callable[[SessionEvent], None]:
        """`tell`, with an ear for the end of cells."""
        from harness.events import CellFinished, CellRepeated

        def told(event: SessionEvent) -> None:
            if isinstance(event, CellFinished | CellRepeated):
                self.cell_ended = time.monotonic()
            tell(event)

        return told

    def earlier(self, spacing_s: float) -> EarlierCell | None:
        """The cell that another campaign of the sweep measured just before."""
        from harness.measuring import EarlierCell

        return None if self.cell_ended is None else EarlierCell(self.cell_ended, spacing_s)


@dataclass(frozen=True)
class Campaign:
    """Everything a session needs; `directory` exists and holds configuration, plan, environment."""

    directory: Path
    config: Config
    data: dict[str, Any]  # the resolved configuration as plain data, maybe with a password
    plan: Plan
    target: Target
    deployed: Deployed
    model: ModelFile
    overrides: tuple[str, ...]  # of the command line that started or resumes it, as given
    member: Member = field(default_factory=Member)

    @property
    def model_bytes(self) -> int:
        """Of all its shards, which are here, too."""
        return sum(path.stat().st_size for path in self.model.info.shards)
