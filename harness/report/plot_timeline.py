"""The cells on the device's time: how fast they were, and what the device showed. Draws only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.analysis.device_course import DeviceCourse
from harness.analysis.verdict_labels import DRIFT_WORDS
from harness.planned import Plan
from harness.records import CellRecord
from harness.report.device_panels import (
    Panel,
    clock_of,
    device_panels,
    left_out,
    not_recorded,
    rejected_sensors,
    unread_cells,
)
from harness.report.plot_style import (
    FAINT,
    INK,
    MOST_STYLES,
    SMALL,
    ArmStyle,
    arm_styles,
    head,
    new_figure,
    verdict_in_words,
    wrapped,
)
from harness.verdicts import CampaignVerdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH_IN, _CELLS_IN, _PANEL_IN = 10.5, 2.6, 1.35
_MOST_NUMBERED = 48
_MOST_MARKED = 120
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
_SHADES = (INK, "#0072b2", "#e69f00", "#009e73")


def draw_timeline(
    verdict: CampaignVerdict,
    plan: Plan,
    records: Sequence[CellRecord],
    device: Mapping[int, DeviceCourse],
) -> Figure | None:
    """Speeds of all cells, and under them a panel for whatever was recorded of the device.

    None without cells. `device`: what was sampled while a cell ran, by the cell's index.
    """
    cells = sorted(records, key=lambda r: r.index)
    if not cells:
        return None
    clock = clock_of(cells)
    spans = [clock.cell(i, r) for i, r in enumerate(cells)]
    panels = device_panels(cells, spans, clock, device)
    figure = new_figure(_WIDTH_IN, _CELLS_IN + _PANEL_IN * len(panels) + 0.8)
    axes = figure.subplots(
        1 + len(panels),
        1,
        sharex=True,
        squeeze=False,
        height_ratios=[_CELLS_IN, *[_PANEL_IN] * len(panels)],
    )[:, 0]
    _bars(axes[0], verdict, plan, cells, spans)
    for panel_axes, panel in zip(axes[1:], panels, strict=True):
        _draw(panel_axes, panel)
    for panel_axes in axes[1:]:
        panel_axes.broken_barh(
            [(start, end - start) for start, end in spans],
            (0, 1),
            transform=panel_axes.get_xaxis_transform(),
            color=FAINT,
            alpha=0.13,
            linewidth=0,
        )
    said = [clock.label, *not_recorded(panels), *rejected_sensors(cells)]
    axes[-1].set_xlabel(wrapped(said, 140))
    figure.suptitle(
        wrapped(_title(verdict), 110), x=0.01, ha="left", fontsize=9.5, fontweight="bold"
    )
    return figure


def _title(verdict: CampaignVerdict) -> list[str]:
    change = verdict.drift.sentinel_change_pct
    by = "" if change is None else f" ({change:+.1f} %)"
    drift = f"drift: {DRIFT_WORDS[verdict.drift.verdict]}{by}"
    return [verdict.campaign, *(verdict_in_words(v) for v in verdict.verdicts), drift]


def _bars(
    axes: Axes,
    verdict: CampaignVerdict,
    plan: Plan,
    cells: Sequence[CellRecord],
    spans: Sequence[tuple[float, float]],
) -> None:
    """A bar a cell, as high as it was fast; hatched where it or its pair was left out.

    More arms than can be told apart by colour are named in their bars.
    """
    styles, out = arm_styles(plan, cells), left_out(verdict)
    unread = unread_cells(verdict, cells) - out
    named = len({r.arm for r in cells}) > MOST_STYLES
    least = 0.002 * (spans[-1][1] - spans[0][0])
    fastest = max((r.metrics.tok_s or 0.0 for r in cells), default=0.0) or 1.0
    for r, (start, end) in zip(cells, spans, strict=True):
        ok = r.status == "ok" and r.metrics.tok_s is not None
        height = (r.metrics.tok_s if ok else None) or 0.06 * fastest
        axes.bar(
            start,
            height,
            width=max(end - start, least),
            align="edge",
            color=("#c8d6e5" if named else styles[r.arm].colour) if ok else "white",
            edgecolor=INK if ok else FAINT,
            linewidth=0.6,
            hatch="////" if r.index in out else "" if ok else "xx",
            alpha=0.55 if r.index in out else 0.3 if r.index in unread else 1.0,
        )
        middle = (start + end) / 2
        if named:
            words, at = f"{r.index}  {r.cell}", (middle, 0.02 * fastest)
            axes.annotate(words, at, rotation=90, ha="center", va="bottom", fontsize=SMALL)
        elif len(cells) <= _MOST_MARKED:
            axes.plot(middle, 0.05 * fastest, **_marked(styles[r.arm]))
        if not named and len(cells) <= _MOST_NUMBERED:
            axes.annotate(
                str(r.index),
                (middle, height),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=SMALL - 1,
            )
    axes.set_ylim(0, fastest * 1.12)
    axes.set_ylabel("tok/s")
    ran = {r.arm for r in cells}
    arms = {} if named else {arm: s for arm, s in styles.items() if arm in ran}
    head(axes, "", _legend(arms, verdict, cells, out, unread), 6)


def _legend(
    arms: Mapping[str, ArmStyle],
    verdict: CampaignVerdict,
    cells: Sequence[CellRecord],
    out: Collection[int],
    unread: Collection[int],
) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Line2D([], [], color=s.colour, linewidth=8, label=arm, **_marked(s))
        for arm, s in arms.items()
    ]
    if any(r.index in out for r in cells):
        why = "pair left out" if verdict.pairs else "contaminated"
        handles.append(Patch(facecolor="white", edgecolor=INK, hatch="////", label=why))
    if unread:
        handles.append(Patch(facecolor=INK, alpha=0.3, label="pale: no verdict rests on it"))
    if any(r.status != "ok" for r in cells):
        handles.append(
            Patch(facecolor="white", edgecolor=FAINT, hatch="xx", label="did not end well")
        )
    return handles


def _marked(style: ArmStyle) -> dict[str, Any]:
    """The arm's marker, which a print in grey needs."""
    return {
        "marker": style.marker,
        "markersize": 4,
        "markerfacecolor": "white",
        "markeredgecolor": INK,
        "markeredgewidth": 0.6,
    }


# --- what the device showed ----------------------------------------------------------------------


def _draw(axes: Axes, panel: Panel) -> None:
    for i, (label, times, values) in enumerate(panel.curves):
        axes.plot(
            times,
            values,
            color=_SHADES[i % len(_SHADES)],
            linestyle=_DASHES[i % len(_DASHES)],
            linewidth=1.1,
            marker="." if len(times) <= 4 * _MOST_NUMBERED else "",
            markersize=3.5,
            label=label,
            # a cap stays until it is seen to have changed
            drawstyle="steps-post" if "cap" in panel.label else "default",
        )
    axes.set_ylabel(panel.label, fontsize=SMALL)
    axes.tick_params(labelsize=SMALL)
    axes.margins(y=0.18)
    if len(panel.curves) > 1 or "temperature" in panel.label:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
