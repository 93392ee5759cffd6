"""Campaigns looked at in MLflow's own pages, in a real browser: what stands beside what.

Screenshots: HARNESS_SCREENSHOTS=DIR python -m pytest tests/e2e/test_mlflow_ui.py
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import pytest
from browser_parts import PATIENCE_MS, Viewed, viewing
from report_parts import throttled_four_cells

from harness import rundir
from harness.analysis.verdict_words import headline
from harness.cli import main
from harness.jsonable import to_json
from harness.judgement import Measured, judge
from harness.records import CellRecord
from harness.tracking import log_campaign
from harness.verdicts import CampaignVerdict

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow
T = TypeVar("T")

TOKENS = 96
DAY = "20261130T134637Z-matched_pair-"
# MLflow asks who is logged in, and is told that there are no users
NO_USERS = "/mlflow/users/current"
# said by browsers, of a page that lays itself out in two steps; nothing is lost
TWO_STEPS = "ResizeObserver loop completed"
MISSING = "Failed to load resource"  # which, `failed` says
ALL = "all campaigns of matched_pair, newest first:\n"
# what cells are compared by, before all groups of metrics
COMPARED = ["anon_peak_bytes", "bytes_per_token", "hit_rate", "tok_s"]


@dataclass(frozen=True)
class Logged:
    directory: Path
    records: Sequence[CellRecord]
    verdict: CampaignVerdict

    @property
    def id(self) -> str:
        return self.directory.name

    def run_names(self) -> list[str]:
        return [f"{r.index:02d}-{r.cell} {self.id[-4:]}" for r in self.records]


@dataclass(frozen=True)
class Ui:
    """The verb, running. `pages`: what it printed, by what it called them; `whole`: of all.

    There is another campaign in the store, `other`, which was not asked for.
    """

    campaigns: Sequence[Logged]  # as they were asked for
    other: Logged
    said: Sequence[str]
    pages: dict[str, str]
    whole: dict[str, str]

    def newest_first(self) -> list[Logged]:
        return sorted(self.campaigns, key=lambda c: c.id, reverse=True)


def logged(runs: Path, campaign: str, seed: int, io_threads: int) -> Logged:
    """A campaign on disk, judged and logged as the harness does it; its speeds are simulated."""
    made = throttled_four_cells(tokens=TOKENS, seed=seed)
    made.name = "matched_pair"
    engines = {
        "baseline": {},
        "retention": {"predict_prefetch": True, "predict_spec_max": 0},
        "spec2": {"predict_prefetch": True, "predict_spec_max": 2},
    }
    made.plan = dataclasses.replace(
        made.plan,
        arms={
            name: dataclasses.replace(
                arm,
                engine=dataclasses.replace(arm.engine, io_threads=io_threads, **engines[name]),
            )
            for name, arm in made.plan.arms.items()
        },
    )
    made.records = [
        dataclasses.replace(
            r, metrics=dataclasses.replace(r.metrics, anon_peak_bytes=500_000_000 + 4096 * r.index)
        )
        for r in made.records
    ]
    directory = made.write(runs).rename(runs / campaign)
    measured = Measured.read(directory)
    records = measured.records()
    verdict = judge(measured, records)
    (directory / rundir.VERDICT).write_text(json.dumps(to_json(verdict)))
    log_campaign(directory, uri=None, runs_dir=runs, experiment="matched_pair")
    return Logged(directory, records, verdict)


def links(said: str) -> dict[str, str]:
    """The addresses in what the verb printed, by what it calls them."""
    found = [re.fullmatch(r"  (.+?) +(http://\S+)", line) for line in said.splitlines()]
    return {m[1]: m[2] for m in found if m}


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    runs = tmp_path_factory.mktemp("mlflow") / "runs"
    runs.mkdir()
    campaigns = [logged(runs, f"{DAY}5a89", 3, 2), logged(runs, f"{DAY}b166", 5, 4)]
    other = logged(runs, f"{DAY}a0c3", 7, 8)
    argv = [sys.executable, "-m", "harness", "ui", "--runs-dir", str(runs), "--port", "0"]
    with subprocess.Popen(
        [*argv, *(c.id for c in campaigns)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said = [process.stdout.readline()]
            while not (said[-1].startswith("  cells by token") and ALL in said):
                assert said[-1], f"it ended: {said}"
                said.append(process.stdout.readline())
            own, _, whole = "".join(said).partition(ALL)
            yield Ui(campaigns, other, said, links(own), links(whole))
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait() == 0, "Ctrl-C is how it is meant to end"


@pytest.fixture(scope="module")
def seen(browser: Browser, ui: Ui) -> Iterator[Viewed]:
    """One page for all tests: MLflow's scripts are read once."""
    with viewing(browser, width=1440, height=1000) as viewed:
        # else its assistant covers a third of the first page that a browser ever sees of it
        viewed.page.add_init_script(
            "if (location.protocol === 'http:')"
            " localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')"
        )
        viewed.page.goto(ui.pages["cells side by side"].partition("#")[0])
        yield viewed


def opened(seen: Viewed, url: str, text: str) -> Page:
    """The page at `url` once it shows `text`. Fails on what its scripts complain of."""
    seen.page.goto("about:blank")  # else a page that differs after the # alone is not loaded anew
    seen.errors.clear()  # of the page before, whose last requests end with it
    seen.page.goto(url)
    seen.page.get_by_text(text, exact=True).first.wait_for()
    return seen.page


def complaints(seen: Viewed) -> list[str]:
    """What the page's scripts said, and which addresses it asked for in vain."""
    said = [e for e in seen.errors if TWO_STEPS not in e and not e.startswith(MISSING)]
    return said + [f for f in seen.failed if NO_USERS not in f]


def settled(look: Callable[[], T], is_so: Callable[[T], bool]) -> T:
    """What is seen once it is as it shall be, else what is seen at last: a page comes in pieces."""
    end = time.monotonic() + PATIENCE_MS / 1e3
    while not is_so(found := look()) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def table_rows(page: Page) -> list[dict[str, str]]:
    """The table of runs, as shown: column -> text, in the order of its rows."""
    found: dict[str, dict[str, str]] = {}
    page.locator(".ag-row .ag-cell").first.wait_for()
    cells = page.locator(".ag-row .ag-cell").evaluate_all(
        "cells => cells.map(c => [c.closest('.ag-row').getAttribute('row-index'),"
        " c.getAttribute('col-id'), c.innerText.trim()])"
    )
    for row, column, text in cells:
        found.setdefault(row, {})[column] = text.rpartition("\n")[2]  # a name has its colour before
    return [found[row] for row in sorted(found, key=int)]


def whole_rows(page: Page, count: int, *columns: str) -> list[dict[str, str]]:
    """The table once it has so many rows, each with these columns."""
    return settled(
        lambda: table_rows(page),
        lambda rows: len(rows) == count and all(c in row for row in rows for c in columns),
    )


def compared(page: Page, section: str) -> dict[str, list[str]]:
    """A table of the comparison as far as it is in sight: name -> a text for each run."""
    switch = page.get_by_label(f"{section} - Show diff only")
    # parameters are a table, metrics a grid of boxes of which those within its frame are there
    box = switch.locator(
        "xpath=ancestor::*[.//table or .//*[@role='rowgroup']][1]"
        "//*[self::th or self::td or parent::*[@role='rowgroup']]"
    )
    found: dict[int, list[tuple[float, str]]] = {}
    for top, left, text in box.evaluate_all(
        "cells => cells.map(c => [c.getBoundingClientRect().top, c.getBoundingClientRect().left,"
        " c.innerText.trim()])"
    ):
        found.setdefault(round(top), []).append((left, text))
    rows = [[text for _, text in sorted(found[top])] for top in sorted(found)]
    return {name: texts for name, *texts in rows}


def charts(page: Page) -> dict[str, list[dict[str, Any]]]:
    """The charts that are drawn: title -> a line for each run, with what is drawn of it."""
    found = page.locator("[data-testid='experiment-view-compare-runs-card']").evaluate_all(
        """cards => cards.filter(card => card.querySelector('.js-plotly-plot')).map(card => {
            const plot = card.querySelector('.js-plotly-plot');
            return [card.innerText.split('\\n')[0], plot.data.map(line => ({
                name: line.name, colour: (line.line || {}).color || (line.marker || {}).color,
                x: Array.from(line.x || []), y: Array.from(line.y || [])}))];
        })"""
    )
    # MLflow draws each line twice, once for the pointer
    return {title: [*{line["name"]: line for line in lines}.values()] for title, lines in found}


def shown(text: str, number: float | None) -> bool:
    """Whether a page's text is this number, to the digits that it shows."""
    if number is None:
        return text in ("", "-", "NaN")
    digits = len(text.partition(".")[2])
    return abs(float(text) - number) <= max(0.5 * 10.0**-digits, 1e-12 * abs(number))


def test_it_says_where_to_look(ui: Ui) -> None:
    assert re.fullmatch(r"MLflow is at http://127\.0\.0\.1:\d+ \(Ctrl-C ends it\)\n", ui.said[0])
    ids = [c.id for c in ui.campaigns]
    views = ["campaigns and verdicts", "cells side by side", "cells by token"]
    own = [*(f"verdict of {campaign}" for campaign in ids), "compare cells"]
    assert list(ui.pages) == [*own, *views]
    assert list(ui.whole) == views
    heads = [line for line in ui.said[1:] if not line.startswith("  ")]
    assert heads == [f"{' and '.join(ids)}:\n", ALL]


def status(url: str, host: str) -> int:
    """Of the answer to a request that names the server `host`."""
    with closing(http.client.HTTPConnection(urlsplit(url).netloc)) as connection:
        connection.request("GET", "/", headers={"Host": host})
        return connection.getresponse().status


def test_a_forwarded_port_works_and_a_foreign_name_does_not(ui: Ui) -> None:
    base = ui.pages["compare cells"].partition("#")[0]
    assert status(base, "localhost:8080") == 200, "ssh -L 8080:127.0.0.1:5000"
    assert status(base, "127.0.0.1:8080") == 200
    assert status(base, "attacker.example") == 403


def test_of_a_server_that_runs_elsewhere_it_says_the_same(
    ui: Ui, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ui.pages["compare cells"].partition("/#")[0]
    assert main(["ui", "--uri", f"{base}/", *(c.id for c in ui.campaigns)]) == 0
    assert capsys.readouterr().out.splitlines(keepends=True) == ui.said[1:]
    assert main(["ui", "--uri", base, f"{DAY}5a98"]) == 2
    said = capsys.readouterr().err
    assert f"no such campaign in the store; did you mean '{DAY}5a89'" in said


def is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def test_it_leaves_nothing_behind_when_it_is_told_to_end_or_its_terminal_goes(ui: Ui) -> None:
    runs = ui.campaigns[0].directory.parent
    argv = [sys.executable, "-m", "harness", "ui", "--runs-dir", str(runs)]
    # whoever is started by `nohup` ignores it, and what he starts does, too
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    processes = [
        subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
        for _ in range(2)
    ]
    signal.signal(signal.SIGHUP, before)
    try:
        said = [p.stdout.readline() for p in processes if p.stdout is not None]
        ports = {int(line.partition("127.0.0.1:")[2].split()[0]) for line in said}
        assert len(ports) == 2, "the second takes the next port"
        for process, number in zip(processes, (signal.SIGTERM, signal.SIGHUP), strict=True):
            process.send_signal(number)
        assert [p.wait() for p in processes] == [0, -signal.SIGHUP]
        for process in processes:
            with pytest.raises(ProcessLookupError):  # of its process group
                os.killpg(process.pid, 0)
        for port in ports:  # other tests take one for a moment
            assert settled(lambda port=port: is_free(port), bool), port
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_every_campaign_has_its_verdict_in_a_sentence(
    ui: Ui, seen: Viewed, screenshots: Path
) -> None:
    page = opened(seen, ui.pages["campaigns and verdicts"], "harness.verdict")
    tags = [f"tags.`{name}`" for name in ("harness.verdict", "harness.outcomes", "verdict.drift")]
    tags.append("attributes.`Run Name`")
    rows = {r["attributes.`Run Name`"]: r for r in whole_rows(page, len(ui.campaigns), *tags)}
    assert rows.keys() == {c.id for c in ui.campaigns}
    for campaign in ui.campaigns:
        assert rows[campaign.id]["tags.`harness.verdict`"] == headline(campaign.verdict)
        short = rows[campaign.id]["tags.`harness.outcomes`"].split(", ")
        for v, words in zip(campaign.verdict.verdicts, short, strict=True):
            effect = "" if v.effect_pct is None else f" {v.effect_pct:+.1f} %"
            assert words == f"{v.candidate} {v.outcome}{effect}"
        assert rows[campaign.id]["tags.`verdict.drift`"] == campaign.verdict.drift.verdict
    seen.shot(screenshots, "mlflow_campaigns")
    assert complaints(seen) == []


def test_cells_of_two_campaigns_stand_in_one_table(ui: Ui, seen: Viewed, screenshots: Path) -> None:
    page = opened(seen, ui.pages["cells side by side"], "arm")
    cells = [
        (c, r, n) for c in ui.newest_first() for r, n in zip(c.records, c.run_names(), strict=True)
    ]
    columns = [f"metrics.`{name}`" for name in COMPARED]
    rows = whole_rows(page, len(cells), *columns, "tags.`harness.timing`", "params.`arm`")
    seen.shot(screenshots, "mlflow_cells")
    assert [r["attributes.`Run Name`"] for r in rows] == [name for *_, name in cells]
    for row, (campaign, record, _) in zip(rows, cells, strict=True):
        for name in ("tok_s", "hit_rate", "bytes_per_token", "anon_peak_bytes"):
            assert shown(row[f"metrics.`{name}`"], getattr(record.metrics, name)), name
        timing = {cell.index: cell.status for cell in campaign.verdict.cells}
        assert row["tags.`harness.timing`"] == timing[record.index]
        assert row["params.`arm`"] == record.arm
    assert complaints(seen) == []


def test_of_the_whole_experiment_all_campaigns_are_there(ui: Ui, seen: Viewed) -> None:
    page = opened(seen, ui.whole["cells side by side"], ui.other.run_names()[-1])
    rows = table_rows(page)
    names = [name for c in (*ui.campaigns, ui.other) for name in c.run_names()]
    assert {r["attributes.`Run Name`"] for r in rows} == set(names)
    assert complaints(seen) == []


def test_of_one_campaign_alone_its_cells_are_there(ui: Ui, seen: Viewed) -> None:
    base = ui.pages["compare cells"].partition("/#")[0]
    argv = [sys.executable, "-m", "harness", "ui", "--uri", base, ui.other.id]
    said = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout
    url = links(said.partition(ALL)[0])["cells side by side"]
    page = opened(seen, url, ui.other.run_names()[-1])
    assert [r["attributes.`Run Name`"] for r in table_rows(page)] == ui.other.run_names()
    assert complaints(seen) == []


def test_cells_by_token_overlay_in_the_colours_of_their_arms(
    ui: Ui, seen: Viewed, screenshots: Path
) -> None:
    page = opened(seen, ui.pages["cells by token"], "tok_s")
    page.wait_for_function(
        "document.querySelectorAll('.js-plotly-plot .scatterlayer .trace').length >= 24"
    )
    first = ("tok_s", "hit_rate", "bytes_per_token")
    cells = {n: r for c in ui.campaigns for r, n in zip(c.records, c.run_names(), strict=True)}

    def whole(lines: list[dict[str, Any]]) -> bool:
        return {line["name"] for line in lines if len(line["x"]) == TOKENS} == set(cells)

    drawn = settled(
        lambda: charts(page), lambda drawn: all(whole(drawn.get(title, [])) for title in first)
    )
    seen.shot(screenshots, "mlflow_by_token")
    assert list(drawn)[:3] == list(first), "what matters is first"
    for title in first:
        assert {line["name"] for line in drawn[title]} == set(cells)
        for line in drawn[title]:
            assert line["x"] == list(range(TOKENS)), "one point a token"
            last = getattr(cells[line["name"]].metrics, title)
            assert line["y"][-1] == pytest.approx(last, rel=1e-6), "the summary ends the series"
    of_arm: dict[str, set[str]] = {}
    for line in drawn["tok_s"]:
        of_arm.setdefault(line["name"][-4:] + cells[line["name"]].arm, set()).add(line["colour"])
    assert all(len(colours) == 1 for colours in of_arm.values())
    assert len(set.union(*of_arm.values())) == len(of_arm) == 6, "arms, and campaigns, differ"
    assert complaints(seen) == []


def test_what_differs_between_the_cells_of_two_campaigns_is_seen_at_once(
    ui: Ui, seen: Viewed, screenshots: Path
) -> None:
    page = opened(seen, ui.pages["compare cells"], "Run details")
    records = [r for c in ui.campaigns for r in c.records]
    page.get_by_label("Parameters - Show diff only").click()
    expected = {
        "arm": [r.arm for r in records],
        "cell": [r.cell for r in records],
        "index": [str(r.index) for r in records],
        "io_threads": ["2"] * 4 + ["4"] * 4,
        "predict_prefetch": ["false", "true", "true", "false"] * 2,
        "predict_spec_max": ["", "0", "2", ""] * 2,
        "role": [r.role for r in records],
    }
    assert settled(lambda: compared(page, "Parameters"), lambda p: p == expected) == expected
    metrics = settled(
        lambda: compared(page, "Metrics"), lambda m: all(len(m.get(n, ())) >= 5 for n in COMPARED)
    )
    for name in COMPARED:
        assert len(metrics[name]) >= 5, "those of both campaigns are in sight"
        for text, record in zip(metrics[name], records, strict=False):
            assert shown(text, getattr(record.metrics, name)), name
    page.get_by_text("Run details", exact=True).evaluate("head => head.scrollIntoView()")
    seen.shot(screenshots, "mlflow_compare_campaigns")
    assert complaints(seen) == []


def test_the_cells_of_a_campaign_are_compared_without_scrolling_for_the_speed(
    ui: Ui, seen: Viewed, screenshots: Path
) -> None:
    (newest, *_) = ui.newest_first()
    page = opened(seen, ui.pages["cells side by side"], "arm")
    # as a user does it: mark the cells, press the button
    for place in range(len(newest.records)):
        page.locator(
            f".ag-pinned-left-cols-container .ag-row[row-index='{place}'] .ag-checkbox-input"
        ).check()
    page.get_by_role("button", name="Compare").click()
    page.get_by_text("Run details", exact=True).wait_for()
    metrics = settled(
        lambda: compared(page, "Metrics"), lambda m: list(m)[: len(COMPARED)] == COMPARED
    )
    assert [n for n in metrics if "/" not in n] == list(metrics)[: len(COMPARED)] == COMPARED
    for text, record in zip(metrics["tok_s"], newest.records, strict=True):
        assert shown(text, record.metrics.tok_s)
    page.get_by_label("Parameters - Show diff only").click()
    page.get_by_label("Metrics - Show diff only").scroll_into_view_if_needed()
    page.get_by_role("link", name="tok_s", exact=True).scroll_into_view_if_needed()
    seen.shot(screenshots, "mlflow_compare_cells")
    assert complaints(seen) == []


def test_a_campaigns_page_begins_with_the_verdict(ui: Ui, seen: Viewed, screenshots: Path) -> None:
    campaign = ui.campaigns[0]
    page = opened(seen, ui.pages[f"verdict of {campaign.id}"], campaign.id)
    page.get_by_text(headline(campaign.verdict), exact=True).wait_for()
    page.get_by_text("Datasets", exact=True).first.wait_for()
    seen.shot(screenshots, "mlflow_verdict")
    text = settled(
        lambda: page.locator("body").inner_text(),
        lambda text: all(name in text for name in campaign.run_names()),
    )
    for name in campaign.run_names():
        assert name in text
    assert complaints(seen) == []
