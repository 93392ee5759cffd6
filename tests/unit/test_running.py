"""A campaign while it runs, as lines and as a block: events in, text out."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace

import pytest
from cell_parts import make_arm, make_plan
from rich.text import Text

from harness.events import (
    AtGate,
    CellFinished,
    CellProgress,
    CellRepeated,
    CellStarted,
    GateReading,
    LiveReadings,
    MovedCap,
    SessionEvent,
    Waiting,
)
from harness.planned import Coins, Plan
from harness.records import CellRecord, Counters, Metrics, TargetId
from harness.report.running import Running
from harness.screen import Block, Screen

MIB = 2**20
BASE = replace(make_arm("baseline"), data_limit_bytes=200 * MIB)
PLAN = make_plan(BASE, replace(make_arm("spec2"), data_limit_bytes=200 * MIB), wait_s=30.0)
N = len(PLAN.cells)
NOW = LiveReadings(61.34, (MovedCap("policy4", 2.8e6, 1.8e6),), 180 * MIB, 190 * MIB)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Board(Screen):
    """Keeps what is said, and the block to ask it at any time."""

    def __init__(self, terminal: bool) -> None:
        super().__init__(io.StringIO())
        self.rewrites, self.said = terminal, list[str]()
        self.block: Block | None = None

    def say(self, text: str, style: str = "") -> None:
        self.said.append(text)

    def show(self, block: Block | None) -> None:
        self.block = block

    def lines(self, width: int = 100) -> list[str]:
        assert self.block is not None
        return [line.plain if isinstance(line, Text) else line for line in self.block(width)]


class Course:
    """A campaign told event by event, at times of our own."""

    def __init__(self, plan: Plan = PLAN, terminal: bool = True, **earlier_s: float) -> None:
        self.board, self._clock = Board(terminal), Clock()
        self._running = Running(self.board, self._clock)
        self._running.begin(plan, earlier_s)

    def at(self, seconds: float, *events: SessionEvent) -> list[str]:
        self._clock.now = 1000.0 + seconds
        for event in events:
            self._running.event(event)
        return self.board.lines() if self.board.rewrites else self.board.said


def started(i: int) -> CellStarted:
    return CellStarted(PLAN.cells[i], N)


def token(i: int, tokens: int | None, tok_s: float | None = None) -> CellProgress:
    return CellProgress(PLAN.cells[i], N, tokens, 1024, tok_s, None, NOW)


def finished(i: int, took_s: float, status: str = "ok") -> CellFinished:
    cell = PLAN.cells[i]
    record = CellRecord(
        cell=cell.name,
        arm=cell.arm,
        role=cell.role,
        index=i,
        status=status,
        exit_code=0,
        argv=(),
        target=TargetId("local", "here"),
        counters=Counters(tokens=1024),
        metrics=Metrics(tok_s=100.0),
        started_unix_s=50.0,
        ended_unix_s=50.0 + took_s,
    )
    return CellFinished(cell, N, record)


def test_a_running_cell_shows_all_there_is() -> None:
    course = Course(baseline=13.0, spec2=20.0)
    course.at(0, started(0))
    course.at(2, token(0, 100))
    lines = course.at(4, token(0, 300, 100.0))
    assert lines == [
        # 7.24 s for what is left of 1024 tokens, then 30 + 20 + 30 + 13
        "━━───────────────"[:16] + "   cell 1 of 3   4 s so far   about 1 min 40 s left",
        "baseline   token 300 of 1024   100.0 tok/s   7 s left",
        "CPU 61.3 °C   anon 180 of 200 MiB, peak 190   cap of policy4 1.80 GHz, was 2.80",
    ]


def test_times_go_on_between_events() -> None:
    course = Course(baseline=13.0, spec2=20.0)
    course.at(0, started(0))
    assert "about 1 min 46 s left" in course.at(0)[0]
    assert "about 1 min 44 s left" in course.at(2)[0]
    waiting = course.at(10, Waiting(PLAN.cells[1], N, 30.0, "spacing"))
    assert waiting[1] == "spec2   waiting 30 s (spacing)"
    assert "about 1 min 33 s left" in waiting[0]
    later = course.at(15)
    assert later[1] == "spec2   waiting 25 s (spacing)"
    assert "about 1 min 28 s left" in later[0]
    assert course.at(41)[1] == "spec2   getting ready"


def test_a_cell_of_40_columns_takes_more_lines_and_loses_nothing() -> None:
    course = Course(baseline=13.0, spec2=20.0)
    course.at(0, started(0), token(0, 100), token(0, 300, 100.0))
    wide, narrow = course.board.lines(100), course.board.lines(40)
    assert max(map(len, narrow)) <= 40
    assert " ".join("   ".join(narrow).split()) == " ".join("   ".join(wide).split())


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (token(0, None), "baseline   starting"),
        (token(0, 1024, 9.0), "baseline   all 1024 tokens out, last probe"),
        (replace(token(0, None), scored=4096), "baseline   4096 tokens scored"),
        (CellRepeated(PLAN.cells[0], N, "lost"), "baseline   getting ready"),
        (started(0), "baseline   running"),
    ],
)
def test_every_state_of_a_cell_has_its_words(event: SessionEvent, words: str) -> None:
    assert Course().at(0, event)[1] == words


def test_a_gate_shows_readings_against_limits_and_for_how_long_at_most() -> None:
    readings = (
        GateReading("cpu_temp_c", 45, 52.3, "thermal_zone0.cpu", False),
        GateReading("cap_pct", 90, 100, "policy0", True),
    )
    course = Course(baseline=13.0, spec2=20.0)
    lines = course.at(0, AtGate(PLAN.cells[0], N, 300.0, readings))
    assert (
        lines[1] == "baseline   waiting at most 300 s for   CPU 52.3 °C (thermal_zone0.cpu), "
        "at most 45 °C"
    )
    assert lines[0].endswith("at most 6 min 46 s left")
    assert course.at(10)[1].startswith("baseline   waiting at most 290 s for")


def test_what_no_cell_took_before_is_not_known() -> None:
    course = Course()
    assert course.at(0, started(0))[0].endswith("at least 1 min left")
    assert course.at(14, finished(0, 13.0))[0].endswith("at least 1 min 13 s left")
    course.at(44, started(1))
    lines = course.at(60, finished(1, 16.0))
    # a pause took 30 s, and the sentinel will take what the baseline took
    assert lines[0].endswith("about 43 s left")


def test_a_cell_that_failed_says_nothing_of_how_long_others_take() -> None:
    course = Course()
    course.at(0, started(0))
    assert course.at(2, finished(0, 2.0, "failed"))[0].endswith("at least 1 min left")


def test_a_design_that_ends_when_it_is_decided_takes_at_most_so_long() -> None:
    drawn = replace(PLAN, coins=Coins(1, (("baseline", "spec2"),)))
    course = Course(drawn, baseline=13.0, spec2=20.0)
    assert course.at(0, started(0))[0].endswith("at most 1 min 46 s left")


def test_without_a_plan_there_is_no_time_left() -> None:
    board = Board(True)
    Running(board, Clock()).event(started(1))
    assert board.lines()[0].endswith("cell 2 of 3   0 s so far")


@pytest.fixture
def night() -> Iterator[list[str]]:
    """Cells of an hour, with a look every second: what a log gets of two of them."""
    course = Course(terminal=False, baseline=3600.0, spec2=3600.0)
    course.at(0, started(0))
    for second in range(1, 3600):
        course.at(second, token(0, second // 4, 0.25))
    course.at(3600, finished(0, 3600.0))
    for second in range(30):
        course.at(3600 + second, Waiting(PLAN.cells[1], N, 30.0 - second, "spacing"))
    yield course.at(3630, started(1))


def test_a_log_of_a_night_has_a_line_for_every_event_and_one_a_minute(night: list[str]) -> None:
    place = "cell 1 of 3 baseline: "
    assert night[0] == place + "running; campaign: about 3 h 1 min left"
    assert night[1] == (
        f"{place}token 15 of 1024, 0.2 tok/s, 1 h 6 min left, CPU 61.3 °C, "
        "anon 180 of 200 MiB, peak 190, cap of policy4 1.80 GHz, was 2.80; "
        "campaign: about 3 h 7 min left"
    )
    assert night[-3:] == [
        place + "100.00 tok/s, 1024 tokens",
        "cell 2 of 3 spec2: waiting 30 s (spacing)",
        "cell 2 of 3 spec2: running; campaign: about 2 h left",
    ]
    assert len(night) == 1 + 59 + 3
    assert all(line.isprintable() for line in night)
