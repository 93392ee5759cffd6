"""Whether a cell has a speed, and whether two cells ran without a break between them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from harness.records import CellRecord

_STATUS_WORDS = {"failed": "failed", "refused": "was refused", "killed": "was killed"}


def no_speed(cell: CellRecord) -> list[str]:
    """Why nothing can be said of the cell's speed; empty where it has one."""
    if cell.status != "ok":
        detail = f" ({cell.status_detail})" if cell.status_detail else ""
        return [f"{cell.cell} {_STATUS_WORDS[cell.status]}{detail}"]
    tok_s = cell.metrics.tok_s
    if tok_s is None or not math.isfinite(tok_s) or tok_s <= 0:
        return [f"the speed of {cell.cell} was not measured"]
    return []


def speed(cell: CellRecord) -> float:
    """tok/s of a cell of which `no_speed` says nothing."""
    assert cell.metrics.tok_s is not None  # noqa: S101 - callers checked
    return cell.metrics.tok_s


def out_of_place(records: Iterable[CellRecord]) -> dict[int, str]:
    """Cells before whose start one that comes later in the plan had begun, and which; by index.

    A resume measures a cell again whose files were damaged, beside whatever the device is by then;
    its neighbours, and its place in the drawn order, are none. A clock that was set back looks the
    same: these cells are lost then, too.
    """
    found: dict[int, str] = {}
    earliest_s, earliest = math.inf, ""  # of those that come later in the plan
    for cell in sorted(records, key=lambda r: r.index, reverse=True):
        if cell.started_unix_s is None:
            continue
        if cell.started_unix_s > earliest_s:
            found[cell.index] = (
                f"{cell.cell} began after {earliest}, which follows it: it was measured "
                "again, not in its place (or the clock was set back)"
            )
        else:
            earliest_s, earliest = cell.started_unix_s, cell.cell
    return found


def too_long_a_break(a: CellRecord, b: CellRecord, max_gap_s: float) -> list[str]:
    """Whether the later of two neighbouring cells began so much later than its recorded pause.

    Then the campaign was interrupted between them, and resumed on another device state.
    """
    first, second = sorted((a, b), key=lambda r: r.index)
    if first.ended_unix_s is None or second.started_unix_s is None or second.wait is None:
        return []
    beyond_s = second.started_unix_s - first.ended_unix_s - second.wait.seconds
    if beyond_s <= max_gap_s:
        return []
    return [
        f"{second.cell} started {beyond_s:.0f} s later than its pause after {first.cell}: "
        "the campaign was interrupted between them"
    ]
