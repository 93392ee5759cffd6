"""Paired estimates and the interval that closes in on them: one panel a candidate. Draws only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.planned import Plan
from harness.report.plot_style import (
    FAINT,
    INK,
    SMALL,
    ArmStyle,
    arm_styles,
    head,
    new_figure,
    verdict_in_words,
    wrapped,
)
from harness.verdicts import CampaignVerdict, LookRow, PairRow
from harness.words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH_IN, _PANEL_IN = 9.5, 4.0
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MOST_REASONS = 8


def draw_estimates(verdict: CampaignVerdict, plan: Plan, margin_pct: float) -> Figure | None:
    """None where no pair has an estimate. `margin_pct`: what counts as equivalent."""
    panels = [
        (v, pairs, [look for look in verdict.looks if look.candidate == v.candidate])
        for v in verdict.verdicts
        if (pairs := _in_order(verdict.pairs, v.candidate))
    ]
    if not panels:
        return None
    figure = new_figure(_WIDTH_IN, _PANEL_IN * len(panels) + 0.3)
    styles = arm_styles(plan)
    for axes, (v, pairs, looks) in zip(
        figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True
    ):
        handles = _panel(axes, pairs, looks, styles[v.candidate], margin_pct)
        head(axes, wrapped([verdict_in_words(v)], 95), handles, 5)
    return figure


def _in_order(pairs: Sequence[PairRow], candidate: str) -> list[PairRow]:
    """All of a candidate's pairs; empty where none has an estimate."""
    own = sorted((p for p in pairs if p.candidate == candidate), key=lambda p: p.block)
    return own if any(p.effect_pct is not None for p in own) else []


def _panel(
    axes: Axes,
    pairs: Sequence[PairRow],
    looks: Sequence[LookRow],
    style: ArmStyle,
    margin_pct: float,
) -> list[Any]:
    """Returns what the legend names."""
    from matplotlib.ticker import MaxNLocator

    low, high = _limits(pairs, looks, margin_pct)
    axes.set_ylim(low, high)
    axes.set_xlim(0.4, max(len(pairs), *(look.pairs for look in looks), 1) + 0.6)
    handles: list[Any] = [
        axes.axhspan(
            -margin_pct, margin_pct, color="#dddddd", label=f"equivalent: within {margin_pct:g} %"
        )
    ]
    axes.axhline(0, color=INK, linewidth=0.8)
    handles += _running(axes, looks, style)
    handles += _dots(axes, pairs, style, (low, high))
    _decisions(axes, looks, high)
    axes.set_ylabel("change of tok/s, %\n(up is faster)")
    axes.set_xlabel(wrapped(["pair, in order of running", *_reasons(pairs)], 140), loc="left")
    axes.xaxis.label.set(fontsize=SMALL + 0.5, multialignment="left")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return handles


def _limits(
    pairs: Sequence[PairRow], looks: Sequence[LookRow], margin_pct: float
) -> tuple[float, float]:
    """What counts is seen whole: clean pairs, the margin, and the intervals from a look on."""
    values = [-1.5 * margin_pct, 1.5 * margin_pct]
    values += [p.effect_pct for p in pairs if p.effect_pct is not None and p.status == "clean"]
    values += [look.effect_pct for look in looks if look.effect_pct is not None]
    bounded = [look.ci_pct for look in looks if look.ci_pct is not None]
    values += [end for ci in bounded[-1:] for end in ci]
    pad = 0.12 * (max(values) - min(values))
    # room for what is said of the looks
    return min(values) - pad, max(values) + 2.6 * pad


def _running(axes: Axes, looks: Sequence[LookRow], style: ArmStyle) -> list[Any]:
    shown = [(look.pairs, look.effect_pct) for look in looks if look.effect_pct is not None]
    if not shown:
        return []
    line = axes.plot(
        *zip(*shown, strict=True),
        color=INK,
        linewidth=1.6,
        label="estimate so far",
    )
    bounded = [(look.pairs, *look.ci_pct) for look in looks if look.ci_pct is not None]
    if not bounded:
        return list(line)
    at, low, high = zip(*bounded, strict=True)
    band = axes.fill_between(
        at, low, high, color=style.colour, alpha=0.3, linewidth=0, label="its interval"
    )
    axes.plot(at, low, color=style.colour, linewidth=0.9)
    axes.plot(at, high, color=style.colour, linewidth=0.9)
    axes.vlines(at, low, high, color=style.colour, linewidth=0.7)
    return [*line, band]


def _dots(
    axes: Axes, pairs: Sequence[PairRow], style: ArmStyle, limits: tuple[float, float]
) -> list[Any]:
    handles: list[Any] = []
    marks = _marks(pairs)
    # what is out of sight stands at the edge, with its number
    edge = 0.02 * (limits[1] - limits[0])
    low, high = limits[0] + edge, limits[1] - edge
    for status, face, words in (
        ("clean", style.colour, "one pair"),
        ("replaced", "none", "left out (why: below)"),
        ("confounded", "none", "confounded"),
    ):
        points = [
            (i, p.effect_pct)
            for i, p in enumerate(pairs, 1)
            if p.status == status and p.effect_pct is not None
        ]
        if not points:
            continue
        inside = [(x, min(max(y, low), high)) for x, y in points]
        (dots,) = axes.plot(
            *zip(*inside, strict=True),
            linestyle="none",
            marker="X" if status == "confounded" else style.marker,
            markersize=6,
            markerfacecolor=face,
            markeredgecolor=INK if face != "none" else FAINT,
            markeredgewidth=0.6 if face != "none" else 1.3,
            zorder=3,
            label=words,
        )
        handles.append(dots)
        for (x, y), (_, true_y) in zip(inside, points, strict=True):
            off = "" if y == true_y else f" {true_y:+.0f} %"
            text = marks.get(pairs[x - 1].block, "") + off
            beside = (5, -9 if y == high else 4)
            axes.annotate(text, (x, y), xytext=beside, textcoords="offset points", fontsize=SMALL)
    return handles


def _decisions(axes: Axes, looks: Sequence[LookRow], top: float) -> None:
    for look in looks:
        if look.alpha is None:
            continue
        axes.axvline(look.pairs, color=INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
        p = "" if look.p is None else f"\np {look.p:.3g}\nneeds {look.alpha:.3g}"
        decided = "" if look.decided is None else f"\n{look.decided.replace('_', ' ')}"
        axes.text(
            look.pairs - 0.08,
            top,
            f"look at {look.clean_pairs}{p}{decided}",
            fontsize=SMALL,
            va="top",
            ha="right",
        )


def _marks(pairs: Sequence[PairRow]) -> dict[int, str]:
    """A letter for each pair that is not clean, by block."""
    left_out = [p.block for p in pairs if p.status not in ("clean", "incomplete")]
    return {
        block: _LETTERS[i % len(_LETTERS)] * (1 + i // len(_LETTERS))
        for i, block in enumerate(left_out)
    }


def _reasons(pairs: Sequence[PairRow]) -> list[str]:
    marks = _marks(pairs)
    lines = [
        f"{marks[p.block]}: {p.reasons[0] if p.reasons else p.status}"
        for p in pairs
        if p.block in marks
    ]
    more = len(lines) - _MOST_REASONS
    return lines[:_MOST_REASONS] + ([f"and {counted(more, 'pair')} more"] if more > 0 else [])
