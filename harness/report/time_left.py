"""How much longer a campaign takes, by what its cells took, and those of earlier ones. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from harness.planned import Plan, PlannedCell
from harness.words import duration


@dataclass(frozen=True)
class TimeLeft:
    """`seconds` of what is known; `unknown`: there is more of which nothing is known.

    `at_most`: it may end earlier, as soon as it is decided.
    """

    seconds: float
    unknown: bool = False
    at_most: bool = False

    @property
    def known(self) -> bool:
        """Anything can be said; of what may be left out and what may take any time nothing can."""
        return not self.unknown or (self.seconds >= 1 and not self.at_most)

    def in_words(self) -> str:
        """`about 2 min left`, `at most 5 min left`, `at least 30 s left`, `time left unknown`."""
        rounded = duration(round(self.seconds))
        if self.unknown:
            return f"at least {rounded} left" if self.known else "time left unknown"
        return f"{'at most' if self.at_most else 'about'} {rounded} left"


class CellTimes:
    """What cells took and take, by arm: in this campaign, else in earlier ones."""

    def __init__(self, plan: Plan, earlier_s: Mapping[str, float]) -> None:
        """`earlier_s`: seconds of a cell of an arm in earlier campaigns, where there are any."""
        self._plan = plan
        self._earlier_s = earlier_s
        self._took_s: dict[str, list[float]] = {}
        self._gaps_s: list[float] = []

    def took(self, arm: str, seconds: float) -> None:
        """A cell ran to its end."""
        self._took_s.setdefault(arm, []).append(seconds)

    def paused(self, seconds: float) -> None:
        """So long was it from the end of a cell to the start of the next one, waits included."""
        self._gaps_s.append(seconds)

    def expected_s(self, arm: str) -> float | None:
        """Of a cell; None where none ran."""
        own = self._took_s.get(arm)
        return statistics.median(own) if own else self._earlier_s.get(arm)

    def left(self, cell: PlannedCell, own_s: float | None, *, bounded: bool = False) -> TimeLeft:
        """From now on: `own_s` of the cell that is under way or next, then all that follow.

        `bounded`: that it takes at most so long, not about.
        """
        later = [c for c in self._plan.cells if c.index > cell.index]
        known = [s for c in later if (s := self.expected_s(c.arm)) is not None]
        usual = statistics.median(self._gaps_s) if self._gaps_s else 0.0
        pauses = sum(max(c.wait_s, usual) for c in later)
        return TimeLeft(
            (own_s or 0.0) + sum(known) + pauses,
            unknown=own_s is None or len(known) < len(later),
            at_most=bounded or self._plan.coins is not None,
        )
