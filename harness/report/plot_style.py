"""How all plots look: colours, markers, figures that need no display. Writes the file of a figure.

Arms differ in lightness, marker and dash, so that a print in grey and an eye that does not tell
colours apart still see which is which. The colours are those of Okabe and Ito.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.analysis.verdict_labels import OUTCOME_WORDS
from harness.analysis.verdict_words import pairs_in_words
from harness.planned import Plan
from harness.records import CellRecord
from harness.verdicts import CandidateVerdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FLAGGED = "#000000"
FAINT, INK = "#999999", "#222222"
SMALL = 7.5
# more points than this in one axes are drawn as a picture inside the SVG
MOST_POINTS = 40_000

_SETTINGS: dict[str, Any] = {
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": SMALL,
    "hatch.linewidth": 0.7,
    # text stays text, and the same numbers give the same file
    "svg.fonttype": "none",
    "svg.hashsalt": "harness",
}


@dataclass(frozen=True)
class ArmStyle:
    """`dash` and `marker`: what tells arms apart without colour."""

    colour: str
    dash: Any
    marker: str


_ARM_STYLES = (
    ArmStyle("#0072b2", "-", "o"),
    ArmStyle("#e69f00", (0, (5, 1.2)), "s"),
    ArmStyle("#009e73", (0, (6, 1.5)), "^"),
    ArmStyle("#cc79a7", (0, (4, 1, 1, 1)), "D"),
    ArmStyle("#56b4e9", (0, (1, 1)), "v"),
    ArmStyle("#8b5a2b", (0, (8, 2, 2, 2)), "P"),
)


# arms that can be told apart by it
MOST_STYLES = len(_ARM_STYLES)


def arm_styles(plan: Plan, records: Iterable[CellRecord] = ()) -> dict[str, ArmStyle]:
    """By arm: the baseline, the candidates, then whatever else was planned or ran."""
    first = () if plan.baseline is None else (plan.baseline,)
    others = (*(c.arm for c in plan.cells), *(r.arm for r in records))
    names = dict.fromkeys([*first, *plan.candidates, *others])
    return {name: _ARM_STYLES[i % len(_ARM_STYLES)] for i, name in enumerate(names)}


def styled() -> Any:
    """A context with the settings of all plots; elsewhere matplotlib keeps its own."""
    from matplotlib import rc_context

    settings: Any = _SETTINGS
    return rc_context(settings)


def new_figure(width_in: float, height_in: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), layout="constrained")


def save(figure: Figure, path: Path) -> Path:
    """As what the path's suffix says: `.svg` or `.png`."""
    svg = path.suffix == ".svg"
    figure.savefig(path, dpi=110, metadata={"Date": None} if svg else None, facecolor="white")
    return path


def head(axes: Axes, title: str, handles: Sequence[Any], columns: int) -> None:
    """A title, and under it the legend, where it hides nothing of the plot."""
    axes.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=columns,
        borderaxespad=0.2,
        handlelength=2.2,
        columnspacing=1.2,
    )
    rows = -(-len(handles) // columns)
    axes.set_title(title, pad=8 + 12 * rows, fontweight="bold")


def wrapped(lines: Iterable[str], width: int) -> str:
    return "\n".join(w for line in lines for w in textwrap.wrap(line, width) or [""])


def verdict_in_words(v: CandidateVerdict) -> str:
    """`spec2 against baseline: loss, -21.0 % tok/s (-24.3 to -17.5), 9 clean pairs`."""
    words = f"{v.candidate} against {v.baseline}: {OUTCOME_WORDS[v.outcome]}"
    if v.effect_pct is not None:
        words += f", {v.effect_pct:+.1f} % tok/s"
    if v.ci_pct is not None:
        words += f" ({v.ci_pct[0]:+.1f} to {v.ci_pct[1]:+.1f})"
    return ", ".join([words, *pairs_in_words(v)])
