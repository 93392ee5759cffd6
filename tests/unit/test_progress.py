"""What is under way, in words: steps with their pace, and lines in a log."""

from __future__ import annotations

import io

import pytest

from harness.progress import Pace, Progress, Step, step_in_words
from harness.screen import Screen
from harness.words import amount, size

MIB = 2**20


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def pace(*seen: tuple[float, int]) -> Pace:
    made = Pace()
    for at, done in seen:
        made.feed(at, done)
    return made


def logged(*steps: tuple[float, Step], worth_a_line: bool = False) -> list[str]:
    out, clock = io.StringIO(), Clock()
    progress = Progress(Screen(out), clock)
    for at, step in steps:
        clock.now = 100 + at
        progress(step, worth_a_line=worth_a_line)
    progress.close()
    return out.getvalue().splitlines()


def test_the_pace_is_that_of_the_last_seconds() -> None:
    steady = pace(*((i / 10, i * MIB) for i in range(600)))
    assert steady.rate == pytest.approx(10 * MIB, rel=0.01)
    assert steady.left_s(699 * MIB) == pytest.approx(10, rel=0.01)
    slower = pace((0, 0), (30, 300), (35, 310), (39, 318))
    assert slower.rate == pytest.approx(2)


def test_what_is_seen_often_is_kept_seldom() -> None:
    busy = pace(*((i / 1000, i) for i in range(30_000)))
    assert len(busy._seen) < 50
    assert busy.rate == pytest.approx(1000, rel=0.05)


@pytest.mark.parametrize(
    "seen", [[], [(0, 5)], [(0, 0), (0.5, 100)], [(0, 50), (5, 50)], [(0, 90), (9, 10)]]
)
def test_a_pace_that_is_not_known_is_not_made_up(seen: list[tuple[float, int]]) -> None:
    assert pace(*seen).rate is None
    assert pace(*seen).left_s(100) is None


def test_a_transfer_tells_bytes_rate_and_time_left() -> None:
    so_far = pace((0, 0), (4, 40 * MIB))
    words = step_in_words(Step("sending m.gguf", 40 * MIB, 100 * MIB), 4.0, so_far)
    assert words == ["sending m.gguf", "40.0 of 100.0 MiB", "10.0 MiB/s", "6 s left"]


def test_a_build_tells_how_many_files_and_for_how_long_and_no_time_left() -> None:
    step = Step("compiling the engine", 120, 300, "files", "ggml.c.o")
    words = step_in_words(step, 62.4, pace((0, 0), (62, 120)))
    assert words == ["compiling the engine", "120 of 300 files", "ggml.c.o", "1 min 2 s so far"]


def test_what_is_not_counted_tells_its_name_and_how_long_it_takes() -> None:
    assert step_in_words(Step("configuring"), 0.4, Pace()) == ["configuring"]
    assert step_in_words(Step("configuring"), 7.2, Pace()) == ["configuring", "7 s so far"]
    assert step_in_words(Step("hashing", 0, 0), 0.4, Pace()) == ["hashing"]


def test_a_log_gets_the_beginning_of_what_is_worth_it_and_then_a_line_a_minute() -> None:
    steps = [(float(i), Step("compiling", i, 200, "files")) for i in range(130)]
    assert logged(*steps, worth_a_line=True) == [
        "compiling, 0 of 200 files",
        "compiling, 60 of 200 files, 1 min so far",
        "compiling, 120 of 200 files, 2 min so far",
    ]


def test_a_log_gets_nothing_of_what_is_quickly_done() -> None:
    steps = [(i / 10, Step(f"hashing {i // 100}", i % 100, 100)) for i in range(590)]
    assert logged(*steps) == []
    long = [(float(i), Step("sending m.gguf", i * MIB, 100 * MIB)) for i in range(70)]
    assert logged(*long) == ["sending m.gguf, 60.0 of 100.0 MiB, 1.0 MiB/s, 40 s left"]


def test_sizes_are_in_the_unit_that_they_fill() -> None:
    assert [size(n) for n in (0, 1023, 1024, 1.5 * MIB, 3 * 2**30)] == [
        *("0 B", "1023 B", "1.0 KiB", "1.5 MiB", "3.0 GiB")
    ]
    assert amount(512, 2048, "bytes") == "0.5 of 2.0 KiB"
    assert amount(3, 100, "bytes") == "3 of 100 B"
    assert amount(3, 100, "campaigns") == "3 of 100 campaigns"
