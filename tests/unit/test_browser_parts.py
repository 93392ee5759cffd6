"""The browser of the tests sees what a page does, and lets nothing leave this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser_parts import PHONE_WIDTH, viewing

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow


def test_a_page_is_seen_at_the_width_and_in_the_colours_asked_for(
    browser: Browser,
    screenshots: Path,
    tmp_path: Path,
) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        '<meta name="viewport" content="width=device-width"><style>@media '
        "(prefers-color-scheme: dark) {body {background: rgb(1, 2, 3)}}</style>"
        "<script>console.error('said'); throw new Error('thrown')</script>"
    )
    with viewing(browser, width=PHONE_WIDTH, dark=True) as seen:
        seen.page.goto(page.as_uri())
        assert seen.page.evaluate("document.documentElement.clientWidth") == PHONE_WIDTH
        assert "rgb(1, 2, 3)" in seen.page.evaluate(
            "getComputedStyle(document.body).backgroundColor"
        )
        assert [e for e in seen.errors if "said" in e]
        assert [e for e in seen.errors if "thrown" in e]
        shot = seen.shot(screenshots, "browser_parts")
    assert shot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "asks",
    [
        '<img src="http://192.0.2.1/a.png">',
        '<link rel="stylesheet" href="https://fonts.example/a.css">',
        "<script>new WebSocket('ws://192.0.2.1/')</script>",
        "<script>fetch('https://telemetry.example/')</script>",
    ],
)
def test_a_page_that_asks_for_another_host_fails_its_test(
    browser: Browser,
    tmp_path: Path,
    asks: str,
) -> None:
    page = tmp_path / "page.html"
    page.write_text(f"<p>here</p>{asks}")
    with (
        pytest.raises(AssertionError, match="the page asked for other hosts"),
        viewing(browser) as seen,
    ):
        seen.page.goto(page.as_uri(), wait_until="domcontentloaded")
        seen.page.wait_for_timeout(200)
    assert len(seen.foreign) == 1
