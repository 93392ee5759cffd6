"""report.html and its Markdown: what stands in them, in which order; nothing is made up."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from imported_parts import imported_pairs
from markdown_it import MarkdownIt
from report_parts import MadeUp, changed, throttled_four_cells, throttled_pairs

from harness.analysis.verdict_words import headline
from harness.cli import main
from harness.importers.write import Imported, write_campaign
from harness.journal import JOURNAL
from harness.judgement import Measured, judge
from harness.planned import Plan
from harness.readings import Excursion
from harness.records import Metrics, Wait
from harness.report.contents import Contents
from harness.report.html import html_report, write_report
from harness.report.markdown import markdown_report
from harness.tracking_data import read_campaign
from harness.verbs.report import contents_of

NASTY = '<script>alert("1")</script>'
VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """What a page says, and what it is made of. A tag that is left open is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, (tag, self._open[-3:], self.words[-3:])
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def read(directory: Path) -> Contents:
    measured = Measured.read(directory)
    records = measured.records()
    return contents_of(measured, records, judge(measured, records), device=True)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    return read(throttled_pairs().write(tmp_path_factory.mktemp("pairs") / "runs"))


@pytest.fixture(scope="module")
def page(pairs: Contents) -> Page:
    return Page(html_report(pairs))


@pytest.fixture
def four(tmp_path: Path) -> Iterator[MadeUp]:
    """Not yet written."""
    made = throttled_four_cells(tokens=64)
    yield made


# --- what stands in it ---------------------------------------------------------------------------


def test_the_verdict_comes_first_and_then_everything_in_its_order(
    page: Page, pairs: Contents
) -> None:
    said = headline(pairs.verdict)
    order = [said, "Effect", "What was compared", "Drift", "Tokens", "What the time went into"]
    order += ["Counters", "What was left out", "Failures", "Environment", "The same again"]
    body = page.text.partition(pairs.directory.name)[2]
    places = [body.index(words) for words in order]
    assert places == sorted(places)
    assert sum(1 for tag, _ in page.tags if tag == "h1") == 1


def test_every_drawing_is_in_two_widths_and_told_to_who_does_not_see_it(page: Page) -> None:
    drawings = [a for a in page.all("svg") if a.get("role") == "img"]
    wide = [a for a in drawings if "wide" in (a.get("class") or "")]
    assert len(wide) * 2 == len(drawings) >= 10, "effects, closing, timeline, traces, attribution"
    assert page.all("title"), "each has a title"


def test_the_timeline_has_caps_temperatures_probes_and_memory_under_the_cells(page: Page) -> None:
    for words in ("frequency cap, GHz", "temperature, °C", "compute probe, ms", "memory available"):
        assert words in page.text
    assert "drift: throttled" in page.text


def test_it_asks_nothing_of_a_network_and_runs_nothing(pairs: Contents) -> None:
    text = html_report(pairs)
    assert not re.search(r"<script|javascript:|@import|<iframe|<img|\bon\w+=", text)
    addresses = re.findall(r"""(?:href|src)\s*=\s*["']?([^"'\s>]+)""", text)
    assert [a for a in addresses if not a.startswith(("#", "data:,"))] == []
    assert re.findall(r"url\(([^)]*)\)", text) == ["#hatch"]


def test_tables_have_headers_with_a_scope(page: Page) -> None:
    assert page.all("th") and all(a.get("scope") in ("col", "row") for a in page.all("th"))
    boxes = [a for a in page.all("div") if a.get("class") == "box"]
    assert len(boxes) == len(page.all("table"))
    assert all(a.get("tabindex") == "0" and a.get("aria-label") for a in boxes)


def test_the_command_that_repeats_it_is_quoted_for_a_shell(tmp_path: Path) -> None:
    made = throttled_pairs(pairs=1)
    made.overrides = (
        "+experiment=sequential_pairs",
        "cell.prompt=it's two words",
        "tracking.uri=http://me:s3cret@host/",
        "x.api_token=s3cret",
        "target.key_file=~/.ssh/board",
    )
    contents = read(made.write(tmp_path / "runs"))
    expected = (
        "python -m harness +experiment=sequential_pairs 'cell.prompt=it'\"'\"'s two words' "
        "tracking.uri=http://host/ 'x.api_token=***' 'target.key_file=~/.ssh/board'"
    )
    assert expected in Page(html_report(contents)).text
    assert expected in markdown_report(contents)
    assert "s3cret" not in html_report(contents)


# --- what is missing is said ---------------------------------------------------------------------


def test_what_was_not_measured_is_said_and_is_not_zero(four: MadeUp, tmp_path: Path) -> None:
    changed(four, 2, metrics=Metrics(), entry=None, exit=None)
    four.device = False
    contents = read(four.write(tmp_path / "runs"))
    page = Page(html_report(contents))
    table = re.search(r"Every cell.*?What was left out", page.text)
    assert table
    row = table[0].partition(f" {contents.records[2].cell} ")[2].partition(" 3 ")[0]
    assert "not measured" in row
    assert not re.search(r"\b0\.00\b|\b0\.0%", row)
    assert "speed not measured" in html_report(contents)


def test_without_sensors_it_says_that_nothing_of_them_was_recorded(tmp_path: Path) -> None:
    contents = read(imported_pairs(tmp_path))
    text = Page(html_report(contents)).text
    assert "not recorded: no sensors: frequency caps, temperatures, probes" in text
    assert "Pauses between cells: not measured" in text
    assert "cells in order (when they ran was not recorded)" in text
    assert f"python -m harness import csv {tmp_path}" in text


def test_an_environment_that_is_absent_or_broken_costs_nothing_else(
    four: MadeUp, tmp_path: Path
) -> None:
    directory = four.write(tmp_path / "runs")
    path = directory / "environment.json"
    for content, wrong in (
        (None, "is missing"),
        (b"", "is damaged (empty)"),
        (b"{", "is damaged (Expecting property name"),
        (b"[]", "is damaged (expected an object, found list)"),
    ):
        path.unlink() if content is None else path.write_bytes(content)
        contents = read(directory)
        assert f"Not known: {path}: {wrong}" in Page(html_report(contents)).text
        # a report in Markdown, and the store, say the same
        said = contents.environment.wrong
        assert said is not None
        markdown = markdown_report(contents).replace("\\", "")  # what it escapes
        assert f"**Environment:** not known: {path}: {wrong}" in markdown
        logged = read_campaign(directory).parent
        assert f"**environment not known**: {said}" in logged.tags["mlflow.note.content"]
        assert not [name for name in logged.params if name.startswith("env.")]
        path.write_bytes(b"{}")
    assert (
        "environment not known" not in read_campaign(directory).parent.tags["mlflow.note.content"]
    )


def test_a_damaged_cell_is_named_and_left_out(four: MadeUp, tmp_path: Path) -> None:
    directory = four.write(tmp_path / "runs")
    (directory / "cells" / "01-retention" / "record.json").write_text("{}")
    contents = read(directory)
    text = Page(html_report(contents)).text
    assert "1 cell damaged" in text
    assert re.search(r"cell retention damaged 1 .*changed since it was written", text)
    assert "changed since it was written" in markdown_report(contents)


def test_a_campaign_that_was_interrupted_says_so(four: MadeUp, tmp_path: Path) -> None:
    four.records = four.records[:2]
    directory = four.write(tmp_path / "runs")
    lines = (directory / JOURNAL).read_text().splitlines()
    event = {"seq": len(lines), "unix_s": 1.0, "event": "campaign_interrupted", "reason": "SIGINT"}
    (directory / JOURNAL).write_text("\n".join([*lines, json.dumps(event)]) + "\n")
    contents = read(directory)
    text = Page(html_report(contents)).text
    assert "2 cells of 4 planned" in text
    assert "2 planned cells not run 2 3 interrupted: SIGINT" in text
    assert headline(contents.verdict) in text


def test_without_a_single_cell_there_is_a_page_that_says_so(four: MadeUp, tmp_path: Path) -> None:
    four.records = []
    text = Page(html_report(read(four.write(tmp_path / "runs")))).text
    assert "No cell was measured." in text and "Wall times of tokens: not measured." in text


def test_failures_excursions_and_waits_are_told(four: MadeUp, tmp_path: Path) -> None:
    changed(four, 1, status="failed", exit_code=5, status_detail="read error", metrics=Metrics())
    excursion = Excursion(4200.0, "cap_drop", "policy4", 1.8e6, 2.6e6, 2.8e6)
    changed(four, 2, excursions=(excursion,), wait=Wait(31.5, "spacing"))
    text = Page(html_report(read(four.write(tmp_path / "runs")))).text
    assert "cell 1 retention failed exit code 5: read error" in text
    assert "frequency cap of policy4 fell from 2.80 to 1.80 GHz (36 % less)" in text
    assert "2 spec2 31.5 spacing none" in text
    assert "1 cell did not end well" in text


# --- what comes from outside ---------------------------------------------------------------------


def test_a_path_that_is_no_text_is_shown_as_far_as_it_is(four: MadeUp, tmp_path: Path) -> None:
    runs = tmp_path / os.fsdecode(b"caf\xe9")
    contents = read(four.write(runs))
    page = write_report(contents).read_text(encoding="utf-8")
    assert "caf?" in page


def test_an_import_that_does_not_say_where_from_has_a_page(tmp_path: Path) -> None:
    made = Imported("x", Plan("survey", {}, (), None, ()), (), {"kind": "made"})
    directory = write_campaign(made, tmp_path)
    assert "a place that is not recorded" in html_report(read(directory))


def test_whatever_a_campaign_says_is_text(tmp_path: Path) -> None:
    """Names of arms, an engine's complaint, notes, a machine's name, overrides."""
    made = throttled_pairs(candidates=("<b>c&amp;",), pairs=2, tokens=64)
    made.overrides = (f"cell.prompt={NASTY}",)
    made.environment = {"hostname": NASTY, "preflight": [{"level": NASTY, "words": NASTY}]}
    changed(made, 1, status="failed", status_detail=f"stderr: {NASTY}", notes=(NASTY,))
    directory = made.write(tmp_path / "runs-x")
    (directory / "config.yaml").write_text(f"name: {json.dumps(NASTY)}\nx: {json.dumps(NASTY)}\n")
    contents = read(directory)
    text = html_report(contents)
    assert "<script" not in text and "<b>c&" not in text
    page = Page(text)
    assert page.text.count(NASTY) >= 6
    assert "<b>c&amp;" in page.text, "shown as it is"
    outside_code = re.sub(r"```.*?```", "", markdown_report(contents), flags=re.DOTALL)
    assert not re.search(r"(?<!\\)<(?!/?(details|summary)>|!-- -->)", outside_code)


def rendered(text: str) -> Page:
    """By a real renderer, with what GitHub's has beside CommonMark: tables, and HTML."""
    return Page(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))


def test_markdown_comes_out_as_it_was_written(four: MadeUp, tmp_path: Path) -> None:
    nasty = "a|b `c` @you #1 [x](y) *z* <!-- <br> $q$ ~~s~~"
    changed(four, 1, status="failed", status_detail=f"{nasty}\n\n# head", exit_code=1)
    four.overrides = ("cell.prompt=```\nrm",)
    text = markdown_report(read(four.write(tmp_path / "runs")))
    page = rendered(text)
    said = "".join(page.words)  # what keeps GitHub from a link is no word
    assert f"exit code 1: {nasty} # head" in said
    assert "cell.prompt=``` rm" in page.text
    tags = {tag for tag, _ in page.tags}
    assert tags <= {
        *("h3", "p", "ul", "li", "strong", "em", "details", "summary", "pre", "code"),
        *("table", "thead", "tbody", "tr", "th", "td"),
    }
    assert len(page.all("h3")) == 1 and len(page.all("details")) == len(page.all("summary")) >= 3
    assert not re.search(r"@you|#1", text), "GitHub would tell somebody, or link an issue"
    rows = [a for a in page.tags if a[0] == "tr"]
    cells = [a for a in page.tags if a[0] in ("td", "th")]
    assert len(cells) > 3 * len(rows), "the tables are tables"


# --- the verb ------------------------------------------------------------------------------------


def test_the_verb_writes_what_it_is_asked_for_and_nothing_else(
    four: MadeUp, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = four.write(tmp_path / "runs")
    before = sorted(directory.rglob("*"))
    assert main(["report", str(directory)]) == 0
    assert main(["report", str(directory), "--md"]) == 0
    elsewhere = tmp_path / "elsewhere.html"
    assert main(["report", str(directory), "--html", str(elsewhere)]) == 0
    assert sorted(directory.rglob("*")) == before
    capsys.readouterr()
    assert main(["report", str(directory), "--html"]) == 0
    assert f"written: {directory / 'report.html'}" in capsys.readouterr().out
    assert (directory / "report.html").read_text() == elsewhere.read_text()


def test_the_markdown_has_the_headline_effect_drift_what_was_left_out_and_the_command(
    pairs: Contents,
) -> None:
    text = markdown_report(pairs)
    assert text.startswith("### ")
    for words in ("| candidate |", "**Drift:** throttled", "Left out, and why", "**Environment**"):
        assert words in text
    assert "python -m harness +experiment=sequential_pairs cell.n_predict=96" in text


def test_a_page_that_cannot_be_written_is_one_line(
    pairs: Contents, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "no" / "such" / "place.html"
    assert main(["report", str(pairs.directory), "--html", str(gone)]) == 1
    assert capsys.readouterr().err.strip().splitlines()[-1].count(str(gone)) == 1


def test_a_page_is_replaced_whole(pairs: Contents, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    path.write_text("old")
    assert write_report(pairs, path) == path
    assert path.read_text().startswith("<!DOCTYPE html>")
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]
