"""Small drawings for a page: scales, ticks, paths, text. Gives SVG as text, touches nothing.

Colours are classes of the page's style sheet, so that a drawing is light or dark as the page is;
text is the page's own. All text that comes in is escaped here, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np

from harness.analysis.series import Array

CHAR = 6.6  # of the page's text at 12 px, about


@dataclass(frozen=True)
class Scale:
    """From values to pixels. `log`: values are positive, and equal ratios equally far apart."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, v = (
            (math.log(self.low), math.log(self.high), math.log(value))
            if self.log
            else (self.low, self.high, value)
        )
        return self.start + (v - low) / ((high - low) or 1.0) * (self.end - self.start)

    def all(self, values: Array) -> Array:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        v = np.log(values) if self.log else values
        return np.asarray(
            self.start + (v - low) / ((high - low) or 1.0) * (self.end - self.start), float
        )

    def ticks(self, about: int = 6) -> list[float]:
        """Round values within the scale, `about` so many."""
        if self.log:
            return self._log_ticks(about)
        span = (self.high - self.low) or 1.0
        rough = span / max(about, 1)
        power = 10.0 ** math.floor(math.log10(rough))
        step = next((m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough), 10 * power)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        if last <= first and about < 8:  # one number on an axis tells no distance
            return self.ticks(about + 1)
        return [i * step for i in range(first, last + 1)]

    def _log_ticks(self, about: int) -> list[float]:
        low, high = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for steps in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
            found = [
                m * 10.0**p
                for p in range(low, high + 1)
                for m in steps
                if self.low <= m * 10.0**p <= self.high
            ]
            if len(found) <= about:
                break
        return found if len(found) > 1 else [self.low, self.high]


@dataclass
class Drawing:
    """Grows by its parts. `title`: what a reader who does not see it is told."""

    width: float
    height: float
    title: str
    parts: list[str] = field(default_factory=list)

    def line(self, x1: float, y1: float, x2: float, y2: float, cls: str) -> None:
        self.parts.append(
            f'<line x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}" class="{cls}"/>'
        )

    def rect(
        self, x: float, y: float, width: float, height: float, cls: str, *, about: str = ""
    ) -> None:
        """`about`: shown where a pointer rests."""
        end = f"><title>{escape(about)}</title></rect>" if about else "/>"
        self.parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(max(width, 0))}" '
            f'height="{_n(max(height, 0))}" class="{cls}"{end}'
        )

    def text(
        self, x: float, y: float, words: str, cls: str = "", anchor: str = "start", *, turn: int = 0
    ) -> None:
        turned = f' transform="rotate({turn} {_n(x)} {_n(y)})"' if turn else ""
        named = f' class="{cls}"' if cls else ""
        at = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self.parts.append(
            f'<text x="{_n(x)}" y="{_n(y)}"{named}{at}{turned}>{escape(words)}</text>'
        )

    def path(self, d: str, cls: str) -> None:
        if d:
            self.parts.append(f'<path d="{d}" class="{cls}"/>')

    def marker(self, x: float, y: float, shape: int, cls: str, size: float = 4.5) -> None:
        """One of as many shapes as there are styles of arms; -1: a cross."""
        self.path(marker_path(x, y, shape, size), cls)

    def svg(self, extra_class: str = "") -> str:
        cls = f"chart {extra_class}".strip()
        return (
            f'<svg class="{cls}" viewBox="0 0 {_n(self.width)} {_n(self.height)}" role="img" '
            f'style="max-width:{_n(self.width)}px" preserveAspectRatio="xMinYMin meet">'
            f"<title>{escape(self.title)}</title>{''.join(self.parts)}</svg>"
        )


def polyline(x: Array, y: Array) -> str:
    """Through all points, in tenths of a pixel; what is not finite is a gap."""
    ok = np.isfinite(x) & np.isfinite(y)
    tenths_x = np.rint(np.where(ok, x, 0) * 10).astype(int)
    tenths_y = np.rint(np.where(ok, y, 0) * 10).astype(int)
    out: list[str] = []
    pen: tuple[int, int] | None = None
    for good, px, py in zip(ok.tolist(), tenths_x.tolist(), tenths_y.tolist(), strict=True):
        if not good:
            pen = None
            continue
        if pen is None:
            out.append(f"M{px / 10:g} {py / 10:g}l")
        else:
            out.append(f"{(px - pen[0]) / 10:g} {(py - pen[1]) / 10:g} ")
        pen = (px, py)
    return "".join(out).replace("lM", "M").rstrip("l ")


def steps(x: Array, y: Array) -> tuple[Array, Array]:
    """A value stays until the next one is seen."""
    if len(x) < 2:
        return x, y
    return np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]


def band(x: Sequence[float], low: Sequence[float], high: Sequence[float]) -> str:
    """The area between two lines."""
    there = " ".join(f"{_n(a)} {_n(b)}" for a, b in zip(x, high, strict=True))
    back = " ".join(f"{_n(a)} {_n(b)}" for a, b in zip(reversed(x), reversed(low), strict=True))
    return f"M{there} {back}Z" if x else ""


def marker_path(x: float, y: float, shape: int, s: float) -> str:
    """circle, square, triangle, diamond, triangle down, plus; -1: a cross."""
    corners: dict[int, Sequence[tuple[float, float]]] = {
        1: ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
        2: ((0, -1.1), (1.1, 0.9), (-1.1, 0.9)),
        3: ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
        4: ((0, 1.1), (1.1, -0.9), (-1.1, -0.9)),
        5: (
            *((-0.4, -1.2), (0.4, -1.2), (0.4, -0.4), (1.2, -0.4), (1.2, 0.4), (0.4, 0.4)),
            *((0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4), (-1.2, 0.4), (-1.2, -0.4), (-0.4, -0.4)),
        ),
    }
    if shape == -1:
        return (
            f"M{_n(x - s)} {_n(y - s)}L{_n(x + s)} {_n(y + s)}"
            f"M{_n(x - s)} {_n(y + s)}L{_n(x + s)} {_n(y - s)}"
        )
    if shape in corners:
        points = " ".join(f"{_n(x + a * s)} {_n(y + b * s)}" for a, b in corners[shape])
        return f"M{points}Z"
    half = f"{_n(s)} {_n(s)} 0 1 0"
    return f"M{_n(x - s)} {_n(y)}a{half} {_n(2 * s)} 0a{half} {_n(-2 * s)} 0Z"


def plain(value: float) -> str:
    """A tick's number; a true minus is as wide as a plus."""
    return f"{value:.6g}".replace("-", "−")


def signed(value: float) -> str:
    return "0" if value == 0 else f"{value:+.6g}".replace("-", "−")


def axis_below(
    d: Drawing,
    scale: Scale,
    y: float,
    top: float,
    words: str,
    *,
    form: Callable[[float], str] = plain,
) -> None:
    """Ticks with numbers under `y`, faint lines up to `top`, and what it is."""
    about = max(2, int(abs(scale.end - scale.start) / 80))
    for tick in scale.ticks(about):
        x = scale(tick)
        d.line(x, top, x, y, "grid")
        d.text(x, y + 15, form(tick), "tick", "middle")
    if words:
        d.text((scale.start + scale.end) / 2, y + 32, words, "label", "middle")


def axis_left(
    d: Drawing, scale: Scale, x: float, right: float, *, form: Callable[[float], str] = plain
) -> None:
    """Ticks with numbers left of `x`, faint lines to the right."""
    about = max(2, int(abs(scale.end - scale.start) / 34))
    for tick in scale.ticks(about):
        y = scale(tick)
        d.line(x, y, right, y, "grid")
        d.text(x - 6, y + 4, form(tick), "tick", "end")


def padded(values: Iterable[float], share: float = 0.08) -> tuple[float, float]:
    """The range of the values and a little more; of equal ones a range around them."""
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    pad = share * (high - low) or abs(high) * 0.05 or 1.0
    return low - pad, high + pad


def _n(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".") if value != int(value) else str(int(value))
