"""`report.html`: one file that says what a campaign found, the verdict first. Writes that file.

It needs nothing but itself: no network, no scripts, no fonts; drawings are SVG in it, which follow
the page's colours. Every word that comes from a campaign is escaped, by jinja2 in the page and by
`svg` in drawings. jinja2 is imported inside functions: no other command waits for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from harness.analysis.verdict_words import headline
from harness.errors import DeviceError
from harness.report import facts_cells, facts_course, facts_environment, facts_verdict
from harness.report.contents import Contents, command, in_one_line, judge_again
from harness.report.device_panels import clock_of, device_panels, not_recorded, rejected_sensors
from harness.report.plot_style import MOST_STYLES
from harness.report.shown import Shown
from harness.report.svg import Drawing
from harness.report.svg_effects import attribution, by_candidate, closing, effects
from harness.report.svg_timeline import styles_of, timeline
from harness.report.svg_traces import arm_traces, pair_traces
from harness.report.trace_columns import traces_of
from harness.verdicts import CandidateVerdict

REPORT = "report.html"
# pixels: of a page on a screen or on paper, and of a phone
_WIDE, _HALF, _NARROW = 1000.0, 490.0, 380.0
# longer tables are folded
_MOST_ROWS_OPEN = 12


@dataclass(frozen=True)
class _Chart:
    """A drawing in both widths, which the template takes as it is: `svg` escaped what it was given.

    `arms`: name and style of those it shows.
    """

    wide: str
    narrow: str
    arms: tuple[tuple[str, int], ...] = ()
    caption: str = ""


def write_report(contents: Contents, path: Path | None = None) -> Path:
    """The path written; None: `report.html` in the campaign's directory.

    It appears whole or not at all. Raises DeviceError when it cannot be written.
    """
    target = contents.directory / REPORT if path is None else path
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        try:
            # a path may hold bytes that are no text
            beside.write_text(html_report(contents), encoding="utf-8", errors="replace")
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as e:
        raise DeviceError(f"{target}: {e.strerror or e}") from e
    return target


def html_report(contents: Contents) -> str:
    """The whole page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("harness.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["tight"] = _tight
    page = environment.get_template("report.html.j2")
    return page.render(**_page(contents), style=_style())


def _tight(words: str) -> str:
    """A number and its % stay on one line."""
    return words.replace(" %", "\u00a0%")


def _style() -> str:
    """Ours, and without a word of a campaign: the template takes it as it is."""
    return (files("harness.report") / "templates" / "report.css").read_text("utf-8")


def _page(c: Contents) -> dict[str, Any]:
    verdict, records = c.verdict, list(c.records)
    return {
        "campaign": c.directory.name,
        "name": c.name,
        "headline": headline(verdict),
        "tone": facts_verdict.overall_tone(verdict),
        "about": in_one_line(c),
        "chips": facts_verdict.chips(c),
        "verdicts": facts_verdict.candidates(c),
        "shared": facts_verdict.shared_reasons(verdict.verdicts),
        "effects_table": facts_verdict.effects_table(verdict),
        "effects": _both(lambda width: effects(verdict, c.margin_pct, width)),
        "closing": _closing(c),
        "margin": f"{c.margin_pct:g}",
        "arms": facts_environment.arms_table(c),
        "drift": facts_verdict.drift_in_words(verdict),
        "drift_reasons": verdict.drift.reasons,
        "timeline": _timeline(c),
        "timeline_notes": _timeline_notes(c),
        "traces": _traces(c),
        "attribution": _attributions(c),
        "attribution_table": facts_verdict.attribution(verdict),
        "findings": facts_verdict.findings(verdict),
        "finding_lines": facts_verdict.finding_lines(verdict),
        "predictions": facts_verdict.predictions(records),
        "counters": facts_cells.counters_by_arm(c.plan, records),
        "outputs": facts_cells.outputs_by_arm(c.plan, records),
        "cells": facts_cells.cells_table(records),
        "left_out": facts_course.left_out(c),
        "looks": facts_verdict.looks(verdict),
        "troubles": facts_course.troubles(c),
        "waits": facts_course.waits(c),
        "briefly": facts_environment.briefly(c),
        "environment": facts_environment.environment_table(c),
        "packages": facts_environment.packages_table(c),
        "preflight": facts_environment.preflight_table(c),
        "settings": facts_environment.settings_table(c),
        "environment_wrong": c.environment.wrong,
        "imported": c.imported,
        "command": command(c),
        "judge_again": judge_again(c),
        "configuration": facts_environment.configuration(c),
        "is_long": _is_long,
    }


def _is_long(table: Shown) -> bool:
    return len(table.rows) > _MOST_ROWS_OPEN


# --- drawings ------------------------------------------------------------------------------------


def _both(
    draw: Callable[[float], Drawing | None],
    arms: tuple[tuple[str, int], ...] = (),
    caption: str = "",
    width: float = _WIDE,
) -> _Chart | None:
    wide, narrow = draw(width), draw(_NARROW)
    if wide is None or narrow is None:
        return None
    return _Chart(wide.svg("wide"), narrow.svg("narrow"), arms, caption)


def _drawn(charts: Iterable[_Chart | None]) -> list[_Chart]:
    """Those for which there was something to draw."""
    return [chart for chart in charts if chart is not None]


def _closing(c: Contents) -> list[_Chart]:
    """How the estimate of each candidate closed in."""
    styles = styles_of(c.plan, c.records)
    return _drawn(_closing_of(c, v, styles.get(v.candidate, 1)) for v in c.verdict.verdicts)


def _closing_of(c: Contents, v: CandidateVerdict, style: int) -> _Chart | None:
    pairs = sorted(
        (p for p in c.verdict.pairs if p.candidate == v.candidate), key=lambda p: p.block
    )
    looks = [look for look in c.verdict.looks if look.candidate == v.candidate]
    return _both(
        lambda width: closing(
            v.candidate, pairs, looks, margin_pct=c.margin_pct, style=style, width=width
        ),
        ((v.candidate, style),),
        f"{v.candidate} against {v.baseline}",
    )


def _timeline(c: Contents) -> _Chart | None:
    styles = styles_of(c.plan, c.records)
    ran = {r.arm for r in c.records}
    arms = tuple((arm, style) for arm, style in styles.items() if arm in ran)
    if len(arms) > MOST_STYLES:
        arms = ()  # they are named in the drawing
    return _both(lambda width: timeline(c.verdict, c.plan, c.records, c.device, width), arms)


def _timeline_notes(c: Contents) -> list[str]:
    cells = sorted(c.records, key=lambda r: r.index)
    if not cells:
        return []
    clock = clock_of(cells)
    spans = [clock.cell(i, r) for i, r in enumerate(cells)]
    panels = device_panels(cells, spans, clock, c.device)
    return [*not_recorded(panels), *rejected_sensors(cells)]


def _traces(c: Contents) -> list[_Chart]:
    traces = traces_of(c.verdict, c.plan, c.records, c.series)
    if traces is None:
        return []
    styles = styles_of(c.plan, c.records)
    draw, width = (pair_traces, _WIDE) if traces.compared else (arm_traces, _HALF)
    return _drawn(
        _both(
            partial(draw, column, styles),
            tuple((arm, styles[arm]) for arm in column.arms),
            column.title,
            width,
        )
        for column in traces.columns
    )


def _attributions(c: Contents) -> list[_Chart]:
    return _drawn(
        _both(partial(attribution, name, rows), caption=name)
        for name, rows in by_candidate(c.verdict.attribution).items()
    )
