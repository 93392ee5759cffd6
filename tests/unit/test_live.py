"""What a running cell's tables say while they grow; and how a whole campaign's time is guessed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cell_parts import make_arm, make_plan

from harness.device.live import SAMPLES_TAIL_BYTES, LiveDevice, LiveMemory
from harness.events import CellProgress, LiveReadings, MovedCap, SessionEvent
from harness.planned import Coins
from harness.report.device_words import readings_in_words
from harness.report.time_left import CellTimes, TimeLeft
from harness.watching import Progress

MIB = 2**20
HEADER = (
    "t_ms,mem_available_bytes,policy0.max_khz,policy0.cur_khz,policy4.max_khz,policy4.cur_khz,"
    "thermal_zone0.cpu-0-0.temp_c,thermal_zone1.cpu-1-0.temp_c,thermal_zone2.battery.temp_c\n"
)


def device_rows(*rows: tuple[int, object, object, object, object]) -> bytes:
    lines = [f"{t},900,{a},1,{b},1,{cpu},{other},31.5\n" for t, a, b, cpu, other in rows]
    return (HEADER + "".join(lines)).encode()


def fed(*tails: bytes) -> LiveDevice:
    live = LiveDevice()
    for tail in tails:
        live.feed(tail)
    return live


# --- the tables ---


def test_the_temperature_is_of_the_hottest_cpu_sensor_that_moves() -> None:
    first = device_rows((0, 2_000_000, 2_800_000, 40.0, 95))
    assert fed(first).cpu_temp_c is None  # nothing has moved: it could be a set point
    live = fed(first, device_rows((250, 2_000_000, 2_800_000, 61.5, 95)))
    assert live.cpu_temp_c == 61.5  # zone 1 stands at its trip point
    assert live.moved_caps == ()


def test_caps_that_moved_are_told_with_what_they_were() -> None:
    live = fed(device_rows((0, 2e6, 2.8e6, 40, 41), (250, 2e6, 1.8e6, 40, 41)))
    assert live.moved_caps == (MovedCap("policy4", 2.8e6, 1.8e6),)
    back = device_rows((500, 2e6, 2.8e6, 40, 41))
    live.feed(back)
    assert live.moved_caps == ()


def test_what_cannot_be_read_any_more_is_not_shown_as_it_was() -> None:
    live = fed(device_rows((0, 2e6, 2e6, 40, 41), (250, 2e6, "", 50, 51)))
    assert live.cpu_temp_c == 51
    live.feed(device_rows((500, 2e6, 1e6, "", "")))
    assert live.cpu_temp_c is None


def test_tails_that_are_cut_or_overlap_give_what_the_whole_file_gives() -> None:
    whole = device_rows(*((250 * i, 2e6, 2.8e6 - 1e4 * i, 40 + i, 41) for i in range(40)))
    expected = fed(whole)
    for size in (300, 700, 1500):
        live = LiveDevice()
        for end in range(200, len(whole) + 1, 37):
            live.feed(whole[:end][-size:] if end > size else whole[:end])
        live.feed(whole[-size:])
        assert live.cpu_temp_c == expected.cpu_temp_c == 79
        assert live.moved_caps == expected.moved_caps


def test_without_the_names_of_the_columns_nothing_is_known() -> None:
    whole = device_rows((0, 2e6, 2e6, 40, 41), (250, 2e6, 1e6, 50, 51))
    live = fed(b"", whole[len(HEADER) :], whole[3:])
    assert (live.cpu_temp_c, live.moved_caps) == (None, ())


def sample(t_ms: int, anon: object) -> str:
    return f"{t_ms},{anon},99999999,88888888,0,12345,123456,1234,12,0\n"


def test_memory_is_the_newest_sample_and_the_largest_on_the_way() -> None:
    rows = "".join(sample(20 * i, (100 - abs(i - 60)) * MIB) for i in range(100))
    live = LiveMemory()
    for end in range(500, len(rows), 900):
        live.feed(rows[:end].encode()[-SAMPLES_TAIL_BYTES:])
    live.feed(rows.encode()[-SAMPLES_TAIL_BYTES:])
    assert (live.anon_bytes, live.peak_bytes) == (61 * MIB, 100 * MIB)


def test_memory_that_a_kernel_does_not_tell_is_not_known() -> None:
    live = LiveMemory()
    live.feed(("t_ms,anon_bytes\n" + sample(0, "") + sample(20, "")).encode())
    assert (live.anon_bytes, live.peak_bytes) == (None, None)


def test_a_second_of_samples_fits_into_their_tail() -> None:
    longest = sample(3_600_000, 10**12)
    assert len(longest) * 50 < SAMPLES_TAIL_BYTES


# --- telling ---


def test_progress_is_told_before_there_are_tokens_and_its_rate_is_of_several_looks() -> None:
    told: list[SessionEvent] = []
    clock = [0.0]
    out = [b""]
    plan = make_plan(make_arm())
    watch = Progress(
        plan.cells[0],
        2,
        100,
        telemetry=lambda: out[0],
        device=lambda: b"",
        samples=("t_ms\n" + sample(20, 7 * MIB)).encode,
        on_event=told.append,
        clock=lambda: clock[0],
    )
    watch.look()
    for second, tokens in enumerate((4, 5, 5, 6), start=1):
        clock[0], out[0] = float(second), b'{"type":"token","token":%d}\n' % (tokens - 1)
        watch.look()
    assert all(isinstance(e, CellProgress) for e in told)
    seen = [(e.tokens, e.tok_s) for e in told if isinstance(e, CellProgress)]
    assert seen[:2] == [(None, None), (4, None)]
    assert seen[-1] == (6, pytest.approx(2 / 3))
    assert told[0].readings == LiveReadings(anon_bytes=7 * MIB, anon_peak_bytes=7 * MIB)
    out[0] = b'{"type":"chunk","chunk":2,"tokens":1024}\n'
    watch.look()
    assert told[-1].scored == 1024
    assert told[-1].tokens is None


def test_readings_are_words_only_where_there_are_some() -> None:
    assert readings_in_words(LiveReadings(), 200 * MIB) == []
    all_of_them = LiveReadings(
        61.34, (MovedCap("policy4", 2.8e6, 1.8e6),), 180 * MIB, 190 * MIB + 5
    )
    assert readings_in_words(all_of_them, 200 * MIB) == [
        "CPU 61.3 °C",
        "anon 180 of 200 MiB, peak 190",
        "cap of policy4 1.80 GHz, was 2.80",
    ]
    assert readings_in_words(LiveReadings(anon_bytes=MIB, anon_peak_bytes=MIB), None) == [
        "anon 1 MiB"
    ]


# --- time left ---

PLAN = make_plan(make_arm("baseline"), make_arm("small"), wait_s=30.0)  # baseline, small, sentinel


def test_time_left_is_by_this_campaigns_cells_before_earlier_ones() -> None:
    times = CellTimes(PLAN, {"baseline": 10.0, "small": 20.0})
    assert times.left(PLAN.cells[0], 10.0) == TimeLeft(10 + 30 + 20 + 30 + 10)
    times.took("baseline", 14.0)
    assert times.left(PLAN.cells[1], 20.0) == TimeLeft(20 + 30 + 14)
    times.paused(33.0)  # what comes beside the fixed pause
    assert times.left(PLAN.cells[1], 20.0) == TimeLeft(20 + 33 + 14)
    assert times.left(PLAN.cells[2], 3.0) == TimeLeft(3)
    assert times.left(PLAN.cells[1], 20.0).in_words() == "about 1 min 7 s left"


def test_time_that_is_not_known_is_not_made_up() -> None:
    times = CellTimes(PLAN, {"baseline": 10.0})
    left = times.left(PLAN.cells[0], 10.0)
    assert left == TimeLeft(80.0, unknown=True)
    assert left.in_words() == "at least 1 min 20 s left"
    assert times.left(PLAN.cells[2], None).in_words() == "time left unknown"


def test_what_ends_when_it_is_decided_takes_at_most_so_long() -> None:
    drawn = replace(PLAN, coins=Coins(1, (("baseline", "small"),)))
    times = CellTimes(drawn, {"baseline": 10.0, "small": 20.0})
    assert times.left(drawn.cells[0], 1.0).in_words() == "at most 1 min 31 s left"
    times = CellTimes(drawn, {"baseline": 10.0})
    # neither at most nor at least: cells may be left out, others may take any time
    assert times.left(drawn.cells[0], 1.0).in_words() == "time left unknown"
