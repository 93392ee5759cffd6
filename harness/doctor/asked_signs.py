"""What a campaign asks of a device before its first cell, and what it means for verdicts. Pure.

What was found is `suitability`'s; here it gets a level for a reader, and its meaning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from harness.device.machine import Storage
from harness.device.suitability import Finding, Needs
from harness.doctor.signs import Level, Sign

# below that no campaign could even begin to record
_LEAST_FREE_BYTES = 2**20
_TITLES = {
    "engines": "other engines",
    "throttling": "heat status",
    "power": "battery",
    "gates": "gate",
    "limits": "session",
}
_MEANS: dict[tuple[str, str], str] = {
    ("throttling", "warning"): "what is measured now is a throttled device",
    ("power", "info"): "it is not so low that the clocks should suffer",
    ("power", "warning"): "the phone may lower its clocks in the middle of a campaign",
    ("memory", "info"): "cells need not take memory from others",
    ("memory", "warning"): "cells would be killed, or swap",
    ("space", "info"): "a campaign can be recorded",
    ("space", "warning"): "a long campaign may end for want of space",
    ("space", "failure"): "nothing can be recorded",
    ("engines", "info"): "whether nobody else measures or serves here is not known",
    ("engines", "warning"): "it holds memory, and may wake up within a cell",
    ("engines", "failure"): "what is measured is what it leaves",
    ("load", "warning"): "cells wait for a core: expect contaminated and unreadable ones",
    ("gates", "warning"): "cells start without it, which their records say",
    ("limits", "warning"): "throttled cells count, which their records do not show",
    ("clock", "info"): "times of day in the records can be trusted",
    ("clock", "warning"): "times of day in the records cannot be compared",
}


def asked(found: Sequence[Finding]) -> Iterable[Sign]:
    """Each finding as a sign."""
    for f in found:
        level: Level = "ok" if f.level == "info" else f.level
        if (f.about, f.level) == ("engines", "info"):
            level = "note"
        means = _MEANS.get((f.about, f.level), "")
        yield Sign(level, _TITLES.get(f.about, f.about), f.words, means, f.advice)


def engines(found: Sequence[Finding], quick: bool) -> Iterable[Sign]:
    """That there is none is news, too. At a glance (`quick`) it may be that of a campaign."""
    for sign in asked(found):
        if quick and sign.level == "failure":
            means = "a campaign may be measuring here; nothing else can meanwhile"
            yield dataclasses.replace(sign, level="warning", means=means)
        else:
            yield sign
    if not any(f.level != "info" for f in found):
        means = "nobody else's inference is in the figures"
        yield Sign("ok", "other engines", "none is seen to run", means)


def load(found: Sequence[Finding], busy_shares: Sequence[float | None]) -> Iterable[Sign]:
    """`busy_shares`: of all cores, at every look; None where it is not shown."""
    known = [share for share in busy_shares if share is not None]
    if known and not found:
        means = "cells get the cores they ask for"
        yield Sign("ok", "load", f"other programs use {min(known):.0%} of all cores", means)
    yield from asked(found)


def memory(found: Sequence[Finding], needs: Needs, available: int | None) -> Iterable[Sign]:
    """And whether the whole model fits, which is another experiment for mapped weights."""
    for sign in asked(found):
        model = needs.model_bytes
        if sign.level == "ok" and model is not None and available is not None:
            fits = available > model
            means = (
                "all of it fits, so that a cell with moe_stream=false may read nothing at all"
                if fits
                else "it does not fit: experts have to come from the storage"
            )
            yield dataclasses.replace(sign, means=means)
        else:
            yield sign


def free_space(work: Storage | None) -> Sign:
    """Where nothing could be written to try it."""
    if work is None or work.free_bytes is None:
        seen = "the directory of campaigns is not there yet"
        return Sign("note", "space", seen, "how much they may take is not known")
    seen = f"{work.path}: {work.free_bytes / 2**30:.1f} GiB free ({work.filesystem})"
    if work.free_bytes < _LEAST_FREE_BYTES:
        advice = "make room, or give another directory"
        return Sign("failure", "space", seen, _MEANS[("space", "failure")], advice)
    return Sign("ok", "space", seen, _MEANS[("space", "info")])
