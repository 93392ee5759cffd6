"""report.html in a real browser: nothing asked for, nothing cut off, readable in light and dark.

Screenshots go to $HARNESS_SCREENSHOTS.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bench.report import cost_of_report
from browser_parts import viewing
from campaign_parts import judged_campaign
from imported_parts import imported_pairs
from report_parts import changed, throttled_four_cells, throttled_pairs

from harness.analysis.verdict_words import headline
from harness.judgement import Measured, judge
from harness.readings import Excursion
from harness.records import Metrics, Wait
from harness.verbs.report import write_html

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

PHONE, TABLET, DESK = 360, 768, 1280
SHOWN = ((PHONE, False), (DESK, False), (DESK, True))
# of text by WCAG 2; 3 for large text, but nothing here relies on that
LEAST_CONTRAST = 4.5
SMALL = (
    *("spec2", "design.pairs=2", "cell.n_predict=96", "schedule.spacing_s=0"),
    *("schedule.probe_s=0.1", "tracking.enabled=false"),
)


def real_pairs(place: Path) -> Path:
    """Measured here and now; its page was written by the campaign itself."""
    overrides = [f"cells.candidate={SMALL[0]}", *SMALL[1:]]
    return judged_campaign(place, overrides).directory / "report.html"


def throttled(place: Path) -> Path:
    """A phone on a hot day: pairs, one cell failed, one went beyond a limit, several waits."""
    made = throttled_pairs(candidates=("spec2", "retention"), pairs=8)
    limit = Excursion(4200.0, "cap_drop", "policy0", 1.9e6, 2.1e6, 2.2e6)
    changed(made, 3, status="failed", exit_code=5, status_detail="read error", metrics=Metrics())
    changed(made, 5, excursions=(limit,))
    for i in range(8):
        changed(made, i, wait=Wait(30.0 + i, "spacing"))
    return page_of(made.write(place / "runs"))


def four_cells(place: Path) -> Path:
    return page_of(throttled_four_cells().write(place / "runs"))


def imported(place: Path) -> Path:
    return page_of(imported_pairs(place))


def page_of(directory: Path) -> Path:
    measured = Measured.read(directory)
    records = measured.records()
    return write_html(measured, records, judge(measured, records))


CAMPAIGNS: dict[str, Callable[[Path], Path]] = {
    made.__name__: made for made in (real_pairs, throttled, four_cells, imported)
}


@pytest.fixture(scope="module", params=CAMPAIGNS)
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a campaign, made once."""
    place = tmp_path_factory.mktemp(request.param)
    path: Path = CAMPAIGNS[request.param](place)
    return path.rename(path.with_name(f"{request.param}.html"))


def test_it_is_read_at_every_width_in_light_and_dark(
    report: Path, browser: Browser, screenshots: Path
) -> None:
    for width in (PHONE, TABLET, DESK):
        for dark in (False, True):
            with viewing(browser, width=width, dark=dark) as viewed:
                asked: list[str] = []
                viewed.page.on("request", lambda r, asked=asked: asked.append(r.url))
                viewed.page.goto(report.as_uri())
                colours = "dark" if dark else "light"
                if (width, dark) in SHOWN:  # a picture of a long page takes seconds
                    viewed.shot(screenshots, f"report-{report.stem}-{width}-{colours}", whole=True)
                assert viewed.errors == []
                assert [u for u in asked if not u.startswith("data:")] == [report.as_uri()]
                assert_nothing_sideways(viewed.page, width)
                assert_drawings_are_seen(viewed.page, narrow=width <= 700)
                assert_contrast(viewed.page, dark=dark)


def test_the_verdict_is_in_the_first_window_of_a_phone(report: Path, browser: Browser) -> None:
    measured = Measured.read(report.parent)
    with viewing(browser, width=PHONE, height=800) as viewed:
        viewed.page.goto(report.as_uri())
        title = viewed.page.locator("h1")
        said = headline(judge(measured, measured.records()))
        assert title.inner_text().replace("\xa0", " ") == f"{said}."
        box = title.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 800, "the sentence ends below the first window"


def test_it_is_printed_whole_and_in_black_on_white(report: Path, browser: Browser) -> None:
    with viewing(browser, dark=True) as viewed:
        page = viewed.page
        page.goto(report.as_uri())
        pdf = page.pdf(format="A4", prefer_css_page_size=True)
        pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
        # as it lies on paper: 210 mm less the margins, at 96 pixels an inch
        page.emulate_media(media="print")
        page.set_viewport_size({"width": 702, "height": 1000})
        assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == (
            "rgb(255, 255, 255)"
        )
        assert_nothing_sideways(page, 702)
        cut_off = page.evaluate(
            """() => [...document.querySelectorAll('table, pre, svg.wide, figure')]
                .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
                .map(e => e.tagName + ' ' + e.textContent.slice(0, 60))"""
        )
        assert cut_off == []
        hidden = page.evaluate(
            """() => [...document.querySelectorAll('details > :not(summary)')]
                .filter(e => e.getBoundingClientRect().height === 0).map(e => e.tagName)"""
        )
        assert hidden == [], "what is folded on a screen is open on paper"
        height_px = page.evaluate("document.documentElement.scrollHeight")
    least = height_px / 1016  # 297 mm less the margins
    assert least * 0.8 <= pages <= 2 * least + 2


def test_a_keyboard_gets_to_every_table_and_fold(report: Path, browser: Browser) -> None:
    with viewing(browser) as viewed:
        viewed.page.goto(report.as_uri())
        wanted = viewed.page.evaluate(
            "document.querySelectorAll('summary').length"
            " + [...document.querySelectorAll('.box, pre')].filter(e => e.checkVisibility()).length"
        )
        reached = set()
        for _ in range(3 * wanted):
            viewed.page.keyboard.press("Tab")
            reached.add(viewed.page.evaluate("[...document.all].indexOf(document.activeElement)"))
        assert len(reached - {0, -1}) >= wanted


def test_the_page_of_a_hundred_cells_costs_less_than_five_seconds(tmp_path: Path) -> None:
    """On a machine at rest. Here others may use it, which lengthens the time of CPU, too: what is
    asserted is three times as much, and many times what it takes. Judging included.
    """
    cost = cost_of_report(tmp_path, cells=100, tokens=128)
    assert cost.cells == 100
    assert cost.cpu_s < 15, cost
    assert cost.page_bytes < 3e6, cost


# --- what a reader would see ---------------------------------------------------------------------


def assert_nothing_sideways(page: Page, width: int) -> None:
    found: dict[str, Any] = page.evaluate(
        """() => ({
            page: document.documentElement.scrollWidth,
            wide: [...document.querySelectorAll('body *')].filter(e => {
                const box = e.closest('.box, pre');
                return (!box || box === e) && e.getBoundingClientRect().right > innerWidth + 1;
            }).map(e => e.tagName + '.' + e.className).slice(0, 5)})"""
    )
    assert found["page"] <= width, found
    assert found["wide"] == []


def assert_drawings_are_seen(page: Page, *, narrow: bool) -> None:
    """One of the two widths of each, and its letters large enough to be read."""
    drawings: list[dict[str, Any]] = page.evaluate(
        """() => [...document.querySelectorAll('svg.chart')].map(e => ({
            narrow: e.classList.contains('narrow'),
            width: e.getBoundingClientRect().width,
            own: e.viewBox.baseVal.width,
            name: e.querySelector('title').textContent}))"""
    )
    assert drawings
    for drawing in drawings:
        seen = drawing["width"] > 0
        assert seen == (drawing["narrow"] == narrow), drawing
        if seen:
            assert 12 * drawing["width"] / drawing["own"] >= 8, drawing
            assert drawing["name"]


def assert_contrast(page: Page, *, dark: bool) -> None:
    """Of every text against what is behind it, from the colours that the browser computed."""
    texts: list[dict[str, Any]] = page.evaluate(
        """() => {
            const found = [];
            const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
            while (walk.nextNode()) {
                const e = walk.currentNode.parentElement;
                if (!walk.currentNode.textContent.trim() || !e.checkVisibility()) continue;
                if (e.closest('title, style, .pale-key')) continue;
                const drawn = e.closest('svg');
                let behind = drawn ? drawn.parentElement : e;
                while (behind && getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)')
                    behind = behind.parentElement;
                const style = getComputedStyle(e);
                found.push({text: walk.currentNode.textContent.trim().slice(0, 40),
                    ink: drawn ? style.fill : style.color,
                    paper: getComputedStyle(behind || document.documentElement).backgroundColor});
            }
            return found; }"""
    )
    assert len(texts) > 50
    papers = {t["paper"] for t in texts}
    page_luminance = luminance(
        page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    )
    assert (page_luminance < 0.05) == dark, "a dark page is dark"
    faint = {
        (t["text"], t["ink"], t["paper"])
        for t in texts
        if contrast(luminance(t["ink"]), luminance(t["paper"])) < LEAST_CONTRAST
    }
    assert not faint, (faint, papers)


def luminance(colour: str) -> float:
    """Of `rgb(1, 2, 3)`, by WCAG 2."""
    numbers = [float(n) for n in re.findall(r"[\d.]+", colour)]
    assert len(numbers) == 3, colour
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (n / 255 for n in numbers)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: float, b: float) -> float:
    return (max(a, b) + 0.05) / (min(a, b) + 0.05)
