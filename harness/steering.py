"""Which cells a running campaign still needs: none of a candidate that is decided, or cannot run.

Reads the campaign's directory through `judgement`; decides, but runs nothing. The same records give
the same answers, so that a resumed campaign goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from harness.analysis.pairs import pairs_verdict
from harness.analysis.standing import Standing, decided_candidates, standings
from harness.judgement import Measured, pair_settings
from harness.planned import PlannedCell
from harness.records import CellRecord
from harness.schema import BLOCK_DESIGNS

# so many cells of an arm that failed, and none that did not: more would fail as well
FAILURES = 2


@dataclass
class Steering:
    """Asked before each cell. `on_pair`: told where every candidate stands after each block."""

    measured: Measured
    stop_when_decided: bool
    on_pair: Callable[[tuple[Standing, ...]], None]
    _judged: int | None = None  # cells that the standings below are of
    _standings: tuple[Standing, ...] = field(default=())

    def wants(self, cell: PlannedCell, records: Mapping[int, CellRecord]) -> bool:
        """Whether the cell is still to be run, given the records so far by index."""
        plan = self.measured.plan
        if plan.design not in BLOCK_DESIGNS or cell.block is None:
            return True
        earlier = [r for i, r in sorted(records.items()) if self._block(i) < cell.block]
        if self._judged != len(earlier):
            self._judge(earlier)
        open_ones = [
            name
            for name in plan.candidates
            if not _cannot_run(name, earlier)
            and not (self.stop_when_decided and name in decided_candidates(self._standings))
        ]
        if not open_ones or (plan.baseline and _cannot_run(plan.baseline, earlier)):
            return False
        return cell.arm == plan.baseline or cell.arm in open_ones

    def _judge(self, records: list[CellRecord]) -> None:
        before, self._judged = self._judged, len(records)
        plan = self.measured.plan
        verdict = pairs_verdict(
            self.measured.directory.name,
            plan,
            records,
            self.measured.series(records),
            pair_settings(self.measured.settings),
        )
        self._standings = standings(plan, verdict)
        if before is not None:  # what an earlier process showed is not shown again
            self.on_pair(self._standings)

    def _block(self, index: int) -> int:
        block = self.measured.plan.cells[index].block
        return -1 if block is None else block


def _cannot_run(arm: str, records: list[CellRecord]) -> bool:
    own = [r.status for r in records if r.arm == arm]
    return "ok" not in own and len(own) >= FAILURES
