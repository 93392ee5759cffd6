"""The gate's answer for the terminal or a log. Writes to one stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from harness.gate.markdown import number
from harness.gate.result import OUTCOME_WORDS, GateResult, clean

_SHOWN_REASONS = 6


def text(result: GateResult, out: TextIO) -> None:
    """Headline, table, and why; of cases that passed the first reason stands in the table."""
    print(clean(result.headline), file=out)
    if result.accepted:
        print("accepted by hand: the next campaigns are compared with this one", file=out)
    then, now = (", ".join(b) or "not known" for b in result.builds)
    against = "" if result.baseline is None else f"; then: {then}"
    print(f"engine now: {now}{against}; margin {result.margin_pct:g} %", file=out)
    if result.cases:
        print(file=out)
        rows = [
            (
                c.arm,
                c.metric,
                number(c.baseline),
                number(c.candidate),
                "-" if c.change_pct is None else f"{c.change_pct:+.1f}",
                "-" if c.interval_pct is None else "{:+.1f} to {:+.1f}".format(*c.interval_pct),
                f"{c.cells[0]} / {c.cells[1]}",
                OUTCOME_WORDS[c.outcome],
            )
            for c in result.cases
        ]
        _print_table(rows, out)
    print(file=out)
    for c in result.cases:
        print(f"{c.arm}, {c.metric}: {OUTCOME_WORDS[c.outcome]}", file=out)
        for reason in c.reasons[:_SHOWN_REASONS]:
            print(f"  - {clean(reason)}", file=out)
        if len(c.reasons) > _SHOWN_REASONS:
            print(f"  - and {len(c.reasons) - _SHOWN_REASONS} more (--json has all)", file=out)
    for note in result.notes:
        print(note, file=out)


_TITLES = ("arm", "metric", "then", "now", "change %", "interval %", "cells", "result")
_WORDS = ("arm", "metric", "result")


def _print_table(rows: Sequence[tuple[str, ...]], out: TextIO) -> None:
    """Words to the left, numbers to the right; it is as wide as it needs to be."""
    widths = [max(len(r[i]) for r in (_TITLES, *rows)) for i in range(len(_TITLES))]
    for row in (_TITLES, *rows):
        cells = [
            cell.ljust(w) if title in _WORDS else cell.rjust(w)
            for cell, w, title in zip(row, widths, _TITLES, strict=True)
        ]
        print("  ".join(cells).rstrip(), file=out)
