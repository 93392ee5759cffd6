"""The verdict of randomised pairs, looked at in order of the pairs as they came. Pure.

A campaign that holds more pairs than were needed gets the verdict that it would have got live: the
looks are applied one after the other, and nothing is read after the one that decides. At every look
only the cells that had run by then are examined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.analysis.candidate_pairs import CandidatePairs
from harness.analysis.drift import drift_between
from harness.analysis.pair_session import PairSession, PairSettings
from harness.analysis.series import Series
from harness.analysis.usable import no_speed
from harness.planned import Plan
from harness.records import CellRecord
from harness.verdicts import CampaignVerdict, Drift
from harness.words import counted

__all__ = ["PairSettings", "pairs_verdict"]


def pairs_verdict(
    campaign: str,
    plan: Plan,
    records: Sequence[CellRecord],
    series: Mapping[int, Series],
    settings: PairSettings,
) -> CampaignVerdict:
    """Read a campaign of pairs (or of blocks forth and back), also one that is still running.

    `series` by the cell's index. Missing cells and fields never raise: they become reasons.
    """
    session = PairSession(plan, tuple(sorted(records, key=lambda r: r.index)), series, settings)
    readings = [CandidatePairs(name, session).read() for name in plan.candidates]
    last = max((r.read_until for r in readings), default=-1)
    return CampaignVerdict(
        campaign=campaign,
        drift=_drift(session, last),
        verdicts=tuple(r.verdict for r in readings),
        cells=session.all_cells(last),
        pairs=tuple(p for r in readings for p in r.pairs),
        looks=tuple(look for r in readings for look in r.looks),
    )


def _drift(session: PairSession, block: int) -> Drift:
    """The first clean baseline cell against the last, over all that was read."""
    if block < 0:
        return Drift("unknown", None, ("no pair has run",))
    verdicts = session.examined(block)
    cells = session.until(block)
    usable = [
        c
        for c in cells
        if c.arm == session.plan.baseline
        and not no_speed(c)
        and verdicts[c.index].status in ("clean", "unknown")
    ]
    if len(usable) < 2:
        return Drift("unknown", None, (f"{counted(len(usable), 'clean baseline cell')} only",))
    return drift_between(usable[0], [usable[-1]], cells, session.settings.drift)
