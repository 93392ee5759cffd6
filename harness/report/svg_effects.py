"""Effects with their intervals against the margin, how they closed in, and what carries them.

Draws only. Each drawing is made for a width in pixels: a narrow one is another layout, not a small
picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harness.analysis.attribution_words import IN_WORDS
from harness.report.shown import tone_of
from harness.report.svg import (
    Drawing,
    Scale,
    axis_below,
    axis_left,
    band,
    padded,
    plain,
    polyline,
    signed,
)
from harness.verdicts import AttributionRow, CampaignVerdict, CandidateVerdict, LookRow, PairRow

_ROW, _NARROW = 46.0, 560
# an effect that was measured is not the change's
_NOTHING_SAID = ("contaminated", "confounded", "unreadable")
_SYMBOLS = {
    **dict.fromkeys(("win", "provisional_win"), "▲ "),
    **dict.fromkeys(("loss", "provisional_loss"), "▼ "),
    "equivalent": "≈ ",
}


def symbol(outcome: str) -> str:
    """What tells a verdict without its colour; `? ` for all that say nothing of speed."""
    return _SYMBOLS.get(outcome, "? ")


def effects(verdict: CampaignVerdict, margin_pct: float, width: float) -> Drawing | None:
    """A row a candidate: its effect and interval on one axis. None where no effect was had."""
    told = [
        v for v in verdict.verdicts if v.effect_pct is not None and v.outcome not in _NOTHING_SAID
    ]
    if not told:
        return None
    narrow = width < _NARROW
    longest = max(len(v.candidate) for v in verdict.verdicts)
    left = 14.0 if narrow else min(max(7.2 * longest + 34, 150), 0.36 * width)
    right, top, row = 14.0, 26.0, _ROW + (4 if narrow else 0)
    bottom = top + row * len(verdict.verdicts)
    d = Drawing(width, bottom + 42, "; ".join(_in_words(v) for v in verdict.verdicts))
    ends = [e for v in told for e in (v.effect_pct or 0.0, *(v.ci_pct or ()))]
    low, high = padded([*ends, -1.6 * margin_pct, 1.6 * margin_pct], 0.06)
    x = Scale(low, high, left, width - right)
    d.rect(x(-margin_pct), top - 6, x(margin_pct) - x(-margin_pct), bottom - top + 6, "margin")
    d.text(x(0), top - 11, f"within {margin_pct:g} %: equivalent", "note", "middle")
    axis_below(d, x, bottom, top - 6, "change of tok/s, % (right is faster)", form=signed)
    d.line(x(0), top - 6, x(0), bottom, "zero")
    for i, v in enumerate(verdict.verdicts):
        y = top + row * (i + 0.5) + (10 if narrow else 0)
        tone = tone_of(v.outcome) or "unsure"
        name = symbol(v.outcome) + _cut(v.candidate, 20 if narrow else 34)
        if narrow:
            d.text(
                4,
                y - 14,
                name if v not in told else f"{name}  {_numbers(v)}",
                f"name {tone}",
            )
        else:
            d.text(4, y - 3, name, f"name {tone}")
            d.text(20, y + 13, v.outcome.replace("_", " "), "note")
        if v.effect_pct is None or v.outcome in _NOTHING_SAID:
            measured = "" if v.effect_pct is None else f" ({v.effect_pct:+.1f} % measured)"
            d.text(x.start + 4, y + 4, f"no effect can be read{measured}", "note")
            continue
        at = x(v.effect_pct)
        if v.ci_pct is not None:
            a, b = x(v.ci_pct[0]), x(v.ci_pct[1])
            d.line(a, y, b, y, f"interval {tone}")
            d.line(a, y - 7, a, y + 7, f"whisker {tone}")
            d.line(b, y - 7, b, y + 7, f"whisker {tone}")
        d.marker(at, y, 3, f"point {tone}" + ("" if v.ci_pct else " hollow"), 6)
        if narrow:
            continue
        numbers = _numbers(v)
        room = 3.3 * len(numbers)
        d.text(min(max(at, left + room), width - right - room), y - 11, numbers, "value", "middle")
    return d


def _numbers(v: CandidateVerdict) -> str:
    if v.ci_pct is None:
        return f"{v.effect_pct:+.1f} %, no interval"
    return f"{v.effect_pct:+.1f} % ({v.ci_pct[0]:+.1f} to {v.ci_pct[1]:+.1f})"


def _in_words(v: CandidateVerdict) -> str:
    what = f"{v.candidate} against {v.baseline}: {v.outcome.replace('_', ' ')}"
    return what if v.effect_pct is None else f"{what}, {_numbers(v)}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


# --- how an estimate closed in -------------------------------------------------------------------


def closing(
    candidate: str,
    pairs: Sequence[PairRow],
    looks: Sequence[LookRow],
    *,
    margin_pct: float,
    style: int,
    width: float,
) -> Drawing | None:
    """Pairs in order of running, the estimate so far with its interval, and the looks."""
    shown = [p for p in pairs if p.effect_pct is not None]
    if not shown:
        return None
    left, right, top, bottom = 52.0, 12.0, 44.0, 250.0
    d = Drawing(
        width,
        bottom + 40,
        f"{candidate}: effect of each of {len(shown)} pairs, and the estimate after each",
    )
    clean = [p.effect_pct or 0.0 for p in shown if p.status == "clean"]
    values = [*clean, -1.5 * margin_pct, 1.5 * margin_pct]
    values += [look.effect_pct for look in looks if look.effect_pct is not None]
    bounded = [look for look in looks if look.ci_pct is not None]
    values += [end for look in bounded[-1:] for end in look.ci_pct or ()]
    y = Scale(*padded(values, 0.1), bottom, top)
    last = max(len(pairs), *(look.pairs for look in looks), 1)
    x = Scale(0.5, last + 0.5, left, width - right)
    d.rect(left, y(margin_pct), width - right - left, y(-margin_pct) - y(margin_pct), "margin")
    axis_left(d, y, left, width - right, form=signed)
    d.line(left, y(0), width - right, y(0), "zero")
    d.text(4, 14, "change of tok/s, % (up is faster)", "label")
    for tick in x.ticks(max(2, int(width / 60))):
        if tick == int(tick) and 1 <= tick <= last:
            d.text(x(tick), bottom + 15, plain(tick), "tick", "middle")
    d.text((left + width - right) / 2, bottom + 32, "pair, in order of running", "label", "middle")

    def inside(value: float) -> float:
        return min(max(y(value), top), bottom)

    at = [x(look.pairs) for look in bounded]
    ends = [look.ci_pct or (0.0, 0.0) for look in bounded]
    lows, highs = [inside(lo) for lo, _ in ends], [inside(hi) for _, hi in ends]
    d.path(band(at, lows, highs), f"band a{style}")
    _looks(d, looks, x, top, bottom)
    line = [(x(k.pairs), y(k.effect_pct)) for k in looks if k.effect_pct is not None]
    if line:
        xs, ys = zip(*line, strict=True)
        d.path(polyline(np.array(xs), np.array(ys)), "estimate")
    for i, p in enumerate(pairs, 1):
        if p.effect_pct is None:
            continue
        off = inside(p.effect_pct) != y(p.effect_pct)
        cls = f"dot a{style}" if p.status == "clean" else "dot out"
        d.marker(x(i), inside(p.effect_pct), style if p.status == "clean" else -1, cls, 4.5)
        if off:
            d.text(x(i) + 7, inside(p.effect_pct) + 4, f"{p.effect_pct:+.0f} %", "note")
    return d


def _looks(d: Drawing, looks: Sequence[LookRow], x: Scale, top: float, bottom: float) -> None:
    for look in looks:
        if look.alpha is None:
            continue
        at = x(look.pairs)
        d.line(at, top - 12, at, bottom, "look")
        p = "" if look.p is None else f" p {look.p:.2g}"
        words = f"look at {look.clean_pairs}:{p}" + (
            "" if look.decided is None else f", {look.decided.replace('_', ' ')}"
        )
        side = "end" if at > (x.start + x.end) / 2 else "start"
        d.text(
            at + (-4 if side == "end" else 4),
            top - 4 - 13 * (look.decided is None),
            words,
            "note",
            side,
        )


# --- what carries an effect ----------------------------------------------------------------------


def attribution(candidate: str, rows: Sequence[AttributionRow], width: float) -> Drawing | None:
    """A bar a part: milliseconds per token that it adds or takes, with its interval."""
    shown = [r for r in rows if r.change_ms is not None]
    if not shown:
        return None
    narrow = width < _NARROW
    left, right, top, row = (12.0 if narrow else 210.0), 16.0, 20.0, (52.0 if narrow else 34.0)
    bottom = top + row * len(shown)
    d = Drawing(
        width,
        bottom + 42,
        f"{candidate}: "
        + "; ".join(f"{IN_WORDS[r.part]} {r.change_ms:+.3g} ms per token" for r in shown),
    )
    ends = [e for r in shown for e in (0.0, r.change_ms or 0.0, *(r.ci_ms or ()))]
    x = Scale(*padded(ends, 0.2), left, width - right)
    axis_below(
        d, x, bottom, top - 8, "ms per token against the baseline (right is slower)", form=signed
    )
    d.line(x(0), top - 8, x(0), bottom, "zero")
    for i, r in enumerate(shown):
        y = top + row * (i + 0.5) + (8 if narrow else 0)
        change = r.change_ms or 0.0
        a, b = sorted((x(0), x(change)))
        tone = ("bad" if change > 0 else "good") if r.carries else "plain"
        d.rect(a, y - 7, max(b - a, 1), 14, f"bar {tone}" + ("" if r.in_wall else " beside"))
        if r.ci_ms is not None:
            d.line(x(r.ci_ms[0]), y, x(r.ci_ms[1]), y, "whisker")
            for end in r.ci_ms:
                d.line(x(end), y - 5, x(end), y + 5, "whisker")
        name = IN_WORDS[r.part] + ("" if r.in_wall else " (beside it)")
        carries = "carries it: " if r.carries else ""
        words = f"{carries}{change:+.3g} ms"
        if narrow:
            d.text(4, y - 14, f"{name}: {words}", "name" if r.carries else "")
        else:
            d.text(left - 12, y - 1, name, "name" if r.carries else "", "end")
            d.text(left - 12, y + 12, words, "note", "end")
    return d


def by_candidate(rows: Sequence[AttributionRow]) -> Mapping[str, list[AttributionRow]]:
    found: dict[str, list[AttributionRow]] = {}
    for r in rows:
        found.setdefault(r.candidate, []).append(r)
    return found
