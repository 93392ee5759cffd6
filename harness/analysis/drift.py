"""How far the speed moved between two cells of the baseline, and whether a cap fell. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.counters import compare_identity, compare_work, reads_ahead, work_is_known
from harness.analysis.device_state import cap_dips, cap_falls, dip_in_words, states_in_order
from harness.analysis.usable import speed
from harness.records import CellRecord
from harness.verdicts import Drift


@dataclass(frozen=True)
class DriftSettings:
    """`stable_pct`: within it the device counts as stable. Bytes read may differ by so much."""

    stable_pct: float = 5.0
    read_bytes_tolerance_pct: float = 0.1


def drift_between(
    opening: CellRecord,
    repeats: Sequence[CellRecord],
    cells: Sequence[CellRecord],
    settings: DriftSettings,
) -> Drift:
    """Repeated over opening baseline, which did equal work or cannot be compared.

    All of them have a speed. Of several repeats the one whose speed is furthest off decides.
    `cells`: all that ran, in order, of which those from `opening` to the last repeat show whether
    a cap fell.
    """
    unlike = [p for c in repeats for p in _not_the_same_work(opening, c, settings)]
    if unlike:
        return Drift("not_comparable", None, tuple(unlike))

    changes_pct = [(speed(c) / speed(opening) - 1) * 100 for c in repeats]
    change_pct = max(changes_pct, key=abs)
    reasons = [
        f"{c.cell} {speed(c):.2f} tok/s against {opening.cell} {speed(opening):.2f} tok/s: "
        f"{pct:+.1f} %"
        for c, pct in zip(repeats, changes_pct, strict=True)
    ]
    all_of_them = "both" if len(repeats) == 1 else "all"
    if not work_is_known(opening):
        reasons.append("work counters were not recorded: equal work is taken from the equal arm")
    elif reads_ahead(opening):
        reasons.append(
            f"{all_of_them} made the same number of tokens; what an arm that reads ahead reads "
            "depends on timing, so its other counters are not compared"
        )
    else:
        reasons.append(f"{all_of_them} did the same work (counters and text agree)")
    last = repeats[-1]
    between = [c for c in cells if opening.index <= c.index <= last.index]
    falls = cap_falls(states_in_order(between))
    falls += tuple(dip_in_words(c, dip) for c in between for dip in cap_dips(c))
    if falls:
        return Drift("throttled", change_pct, (*reasons, *falls))
    stable = abs(change_pct) <= settings.stable_pct + 1e-9
    reasons.append(
        f"{'within' if stable else 'beyond'} the {settings.stable_pct:g} % that count as stable"
    )
    return Drift("stable" if stable else "drifting", change_pct, tuple(reasons))


def _not_the_same_work(
    opening: CellRecord, closing: CellRecord, settings: DriftSettings
) -> tuple[str, ...]:
    problems: tuple[str, ...] = ()
    if opening.arm != closing.arm:
        problems += (f"{closing.cell} is of arm {closing.arm}, {opening.cell} of {opening.arm}",)
    problems += compare_identity(opening, closing).problems
    problems += compare_work(opening, closing, settings.read_bytes_tolerance_pct).problems
    return problems
