"""A real Chromium (Debian's) for tests that look at pages, and the screenshots that it takes.

`browser` and `screenshots` are fixtures of every test (conftest.py). A browser lives as long as its
module: playwright leaves an event loop in the thread, which must not stay for the tests of others.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SCREENSHOTS = "HARNESS_SCREENSHOTS"
PHONE_WIDTH = 390
# for a browser to start, a page to load, a picture to be drawn: seconds, at rest
PATIENCE_MS = 180_000
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_WITHOUT_HOST = ("file", "data", "blob", "about", "chrome-error")
# seen and reported by `viewing`; this makes sure that such a request does not go out even so,
# nor one that a page's events do not show (a WebSocket, the browser's own)
_NO_OTHER_HOST = "--host-resolver-rules=MAP * ~NOTFOUND, " + ", ".join(
    f"EXCLUDE {host}" for host in _LOOPBACK
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser; the test is skipped where playwright or Chromium is not installed."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium here (Debian: apt install chromium)")
    with api.sync_playwright() as playwright:
        # it is run without its sandbox, which root may not have, and reads our own pages only
        running = playwright.chromium.launch(
            executable_path=program, args=[_NO_OTHER_HOST], timeout=PATIENCE_MS
        )
        try:
            yield running
        finally:
            running.close()


@dataclass
class Viewed:
    """One page and what it did. `errors`: of its scripts, uncaught or written to the console;
    `failed`: what it asked for and did not get, `404 http://...`."""

    page: Page
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def shot(self, directory: Path, name: str, *, whole: bool = False) -> Path:
        """`directory/name.png`: what is in the window, or the `whole` page."""
        path = directory / f"{name}.png"
        self.page.screenshot(path=path, full_page=whole, animations="disabled")
        return path


@contextmanager
def viewing(
    browser: Browser, *, width: int = 1280, height: int = 900, dark: bool = False
) -> Iterator[Viewed]:
    """A new page with nothing remembered. Fails when it asked for any host but this one.

    `width` PHONE_WIDTH is a phone: touch, and a `<meta viewport>` that counts.
    """
    phone = width <= PHONE_WIDTH
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        is_mobile=phone,
        has_touch=phone,
        locale="en-GB",
        timezone_id="UTC",
    )
    try:
        context.set_default_timeout(PATIENCE_MS)
        viewed = Viewed(context.new_page())

        def asked(url: str) -> None:
            parts = urlsplit(url)
            if parts.scheme not in _WITHOUT_HOST and parts.hostname not in _LOOPBACK:
                viewed.foreign.append(url)

        context.on("request", lambda request: asked(request.url))
        viewed.page.on(
            "response",
            lambda got: (
                viewed.failed.append(f"{got.status} {got.url}") if got.status >= 400 else None
            ),
        )
        viewed.page.on("websocket", lambda socket: asked(socket.url))
        viewed.page.on("pageerror", lambda error: viewed.errors.append(str(error)))
        viewed.page.on(
            "console",
            lambda said: viewed.errors.append(said.text) if said.type == "error" else None,
        )
        yield viewed
        assert viewed.foreign == [], "the page asked for other hosts"
    finally:
        context.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the tests of a module; give each its own page with `viewing`."""
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go: $HARNESS_SCREENSHOTS, else a directory of pytest's."""
    asked = os.environ.get(SCREENSHOTS)
    directory = Path(asked) if asked else tmp_path_factory.mktemp("screenshots")
    directory.mkdir(parents=True, exist_ok=True)
    return directory
