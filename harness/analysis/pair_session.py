"""What all candidates of a campaign of pairs are read with: settings, cells, their state. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.analysis.contamination import ContaminationSettings, examine
from harness.analysis.drift import DriftSettings
from harness.analysis.series import Series
from harness.looks import look_schedule
from harness.planned import Plan
from harness.records import CellRecord
from harness.verdicts import CellVerdict


@dataclass(frozen=True)
class PairSettings:
    """Of the verdict of pairs; the defaults are the published method's.

    `margin_pct`: what counts as equivalent. `hold_p`: with a p-value of no effect up to this and
    looks to come, equivalence waits: a small effect may yet show. `provisional_min_log`: how far
    (ln) both cells of a candidate must be beyond both of the baseline for a provisional verdict.
    `stall_note_pct`: how far the effects on the mean and on the typical token may be apart before
    it is said. `max_gap_s`: how much longer than its pause a break inside a pair may be. `interim`:
    also estimate between the looks, for whoever shows it.
    """

    warmup_tokens: int = 16
    margin_pct: float = 3.0
    equivalence_alpha: float = 0.025
    hold_p: float = 0.05
    provisional_min_log: float = 0.10
    stall_note_pct: float = 5.0
    max_gap_s: float = 300.0
    drift: DriftSettings = field(default_factory=DriftSettings)
    contamination: ContaminationSettings = field(default_factory=ContaminationSettings)
    interim: bool = True


class PairSession:
    """What every candidate of a campaign is read with; cells are examined once for each prefix."""

    def __init__(
        self,
        plan: Plan,
        records: tuple[CellRecord, ...],
        series: Mapping[int, Series],
        settings: PairSettings,
    ) -> None:
        self.plan = plan
        self.records = records
        self.series = series
        self.settings = settings
        self.schedule = look_schedule(max(len(plan.candidates), 1))
        self.by_index = {r.index: r for r in records}
        self._block = {c.index: c.block for c in plan.cells}
        self._examined: dict[int, dict[int, CellVerdict]] = {}

    def until(self, block: int) -> list[CellRecord]:
        """The cells that had run once the block had, in order."""
        return [
            r for r in self.records if (b := self._block.get(r.index)) is not None and b <= block
        ]

    def examined(self, block: int) -> dict[int, CellVerdict]:
        """The verdict of each of those cells, by index."""
        if block not in self._examined:
            cells = self.until(block)
            found = examine(cells, self.series, self.settings.contamination)
            self._examined[block] = {v.index: v for v in found}
        return self._examined[block]

    def all_cells(self, block: int) -> tuple[CellVerdict, ...]:
        """Of every record: as it stood when the last verdict fell, later ones against them all."""
        read = self.examined(block) if block >= 0 else {}
        if all(r.index in read for r in self.records):
            return tuple(read[r.index] for r in self.records)
        rest = examine(self.records, self.series, self.settings.contamination)
        return tuple(read.get(v.index, v) for v in rest)
