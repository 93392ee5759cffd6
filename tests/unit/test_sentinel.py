"""What goes beyond the limits of `session` while a cell runs, from made-up device tables."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any, cast

import pytest
from cell_parts import make_arm, make_plan
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.device_state import cap_dips
from harness.analysis.steps import Step
from harness.analysis.tells import went_beyond
from harness.collect import DEVICE, collect_cell
from harness.device.sentinel import TAIL_BYTES, LiveSentinel, Watch, excursions
from harness.jsonable import from_json, to_json
from harness.readings import CpufreqState, DeviceState, Excursion
from harness.records import CellRecord, TargetId, Wait
from harness.session_config import SessionConfig
from harness.targets.link import Finished
from harness.targets.target import Target

HEADER = (
    "t_ms,mem_available_bytes,load_1m,running_tasks,swap_free_bytes,policy0.max_khz,policy0.cur_khz,"
    "thermal_zone0.cpu-0-0.temp_c,thermal_zone1.cpu-0-1.temp_c,thermal_zone2.battery.temp_c,"
    "thermal_zone3.cpu-trip.temp_c"
)
LIMITS = SessionConfig(cpu_temp_max_c=80, cpu_temp_rise_c=20, cap_drop_pct=10)
HOT, RISEN = "thermal_zone1.cpu-0-1", "thermal_zone0.cpu-0-0"


def row(t_ms: int, cap: object, a: object, b: object) -> str:
    return f"{t_ms},1000,0.1,1,,{cap},1000000,{a},{b},95.0,99.6"


def table(*rows: str) -> bytes:
    return "".join(f"{line}\n" for line in (HEADER, *rows)).encode()


THROTTLED = table(
    row(0, 2_800_000, 50, 70),
    row(250, 2_700_000, 60, 80),
    row(500, 2_500_000, 69, 80.5),
    row(750, 1_800_000, 70.5, 85),
    row(1000, 2_800_000, 60, 70),
    row(1250, 1_000_000, 90, 90),
)


def test_each_limit_is_told_of_once_at_the_first_row_beyond_it() -> None:
    assert excursions(THROTTLED, LIMITS) == (
        Excursion(500, "cpu_temp_max", HOT, 80.5, 80, 70),
        Excursion(500, "cap_drop", "policy0", 2_500_000, 2_520_000, 2_800_000),
        Excursion(750, "cpu_temp_rise", RISEN, 70.5, 70, 50),
    )


@pytest.mark.parametrize("off", ["cpu_temp_max_c", "cpu_temp_rise_c", "cap_drop_pct"])
def test_a_limit_that_is_off_is_not_looked_at(off: str) -> None:
    what = off.rpartition("_")[0]
    found = excursions(THROTTLED, dataclasses.replace(LIMITS, **{off: None}))
    assert found is not None
    assert what not in [e.what for e in found]
    assert len(found) == 2


def test_watched_and_quiet_is_told_from_not_watched() -> None:
    calm = table(row(0, 2_800_000, 50, 50), row(250, 2_800_000, 51, 51))
    assert excursions(calm, LIMITS) == ()
    off = SessionConfig(cap_drop_pct=None)
    assert excursions(calm, off) is None
    assert excursions(b"", LIMITS) is None
    assert excursions(b"t_ms,mem_available_bytes\n0,1\n", LIMITS) is None
    blind = table(row(0, "", "", ""), row(250, "", "", ""))
    assert excursions(blind, SessionConfig()) is None


def test_a_reading_that_never_moves_is_no_temperature() -> None:
    stands = table(*(row(k * 250, 2_800_000, 50, 50) for k in range(9)))
    assert excursions(stands, dataclasses.replace(LIMITS, cpu_temp_max_c=45)) == ()
    moves = stands + f"{row(9000, 2_800_000, 50, 51)}\n".encode()
    (found,) = excursions(moves, dataclasses.replace(LIMITS, cpu_temp_max_c=45)) or ()
    assert (found.t_ms, found.sensor, found.value) == (9000, HOT, 51)


def test_rows_that_are_cut_or_foreign_are_passed_over() -> None:
    torn = THROTTLED.replace(b"500,1000", b"x,1000") + b"1500,1"
    found = excursions(torn, LIMITS)
    assert found is not None
    assert {e.t_ms for e in found} == {750}


@given(st.binary(max_size=300))
def test_whatever_follows_the_header_raises_nothing(rest: bytes) -> None:
    excursions(HEADER.encode() + b"\n" + rest, LIMITS)
    excursions(b"t_ms," + rest, LIMITS)


@given(st.lists(st.integers(0, len(THROTTLED)), max_size=12), st.integers(700, 900))
def test_a_growing_table_tells_the_same_as_the_whole(cuts: list[int], tail: int) -> None:
    """Looks come whenever they like, and see the last bytes, always as much as was added."""
    watch, found, seen = Watch(LIMITS), list[Excursion](), 0
    for cut in sorted({*cuts, len(THROTTLED)}):
        while seen < cut:  # a look at least every 100 bytes, which the tail covers
            seen = min(cut, seen + 100)
            found += watch.feed(THROTTLED[max(0, seen - tail) : seen])
    assert tuple(found) == excursions(THROTTLED, LIMITS)


# --- live ----------------------------------------------------------------------------------------


class Disk:
    """A target whose files are here and whose programs run here."""

    id = TargetId("local", "here")

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def call(self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Finished:
        self.calls.append(list(argv))
        done = subprocess.run(
            argv, input=stdin, capture_output=True, timeout=timeout_s, check=False
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def tail(self, path: PurePath, size: int) -> bytes:
        file = Path(path)
        return file.read_bytes()[-size:] if file.exists() else b""


def test_a_running_cell_is_seen_to_go_beyond(tmp_path: Path) -> None:
    disk, file = Disk(), tmp_path / "device.csv"
    sentinel = LiveSentinel(cast(Target, disk), file, LIMITS)
    assert sentinel.look() == ()
    file.write_bytes(THROTTLED[:-10])
    assert [e.what for e in sentinel.look()] == ["cpu_temp_max", "cap_drop", "cpu_temp_rise"]
    assert sentinel.look() == ()
    assert disk.calls == []


def test_a_look_that_comes_late_fetches_the_header_once(tmp_path: Path) -> None:
    disk, file = Disk(), tmp_path / "device.csv"
    sentinel = LiveSentinel(cast(Target, disk), file, LIMITS)
    calm = [row(k * 250, 2_800_000, 50 + k % 2, 50) for k in range(2 * TAIL_BYTES // 60)]
    file.write_bytes(table(*calm))
    assert sentinel.look() == ()
    with file.open("ab") as f:
        f.write(f"{row(10**6, 2_800_000, 71, 50)}\n".encode())
    (found,) = sentinel.look()
    assert (found.what, found.start) == ("cpu_temp_rise", 50)
    assert len(disk.calls) == 1


def test_without_limits_nothing_is_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "device.csv"
    file.write_bytes(THROTTLED)
    sentinel = LiveSentinel(cast(Target, Disk()), file, SessionConfig(cap_drop_pct=None))
    assert sentinel.look() == ()


def test_the_record_has_them_and_says_where_nothing_was_watched(tmp_path: Path) -> None:
    def record(limits: SessionConfig | None) -> CellRecord:
        arm = make_arm()
        return collect_cell(
            tmp_path,
            make_plan(arm).cells[0],
            arm,
            engine_argv=["/e"],
            target=TargetId("local", "here"),
            model_sha256="m",
            wait=Wait(0.0, "first cell"),
            limits=limits,
        )

    assert record(LIMITS).excursions is None
    (tmp_path / DEVICE).write_bytes(THROTTLED)
    found = record(LIMITS)
    assert found.excursions == excursions(THROTTLED, LIMITS) != ()
    assert from_json(CellRecord, json.loads(json.dumps(to_json(found)))) == found
    assert record(None).excursions is None


# --- what becomes of it --------------------------------------------------------------------------

SLOWER = Step(token=100, change=0.2, z=8.0)
STEADY = Step(token=100, change=0.01, z=0.5)


def cell(exit_khz: int, *found: Excursion) -> CellRecord:
    def at(khz: int) -> DeviceState:
        return DeviceState(cpufreq=(CpufreqState("policy0", scaling_max_khz=khz),))

    return CellRecord(
        cell="spec2",
        arm="spec2",
        role="candidate",
        index=2,
        status="ok",
        exit_code=0,
        argv=(),
        target=TargetId("local", "here"),
        entry=at(2_800_000),
        exit=at(exit_khz),
        excursions=found,
    )


DIP = Excursion(3200, "cap_drop", "policy0", 1_800_000, 2_520_000, 2_800_000)
HEAT = Excursion(12_000, "cpu_temp_max", HOT, 91.5, 90, 60)


def tell(record: CellRecord, step: Step | None) -> Any:
    return went_beyond(record, step, change_pct=4, z=3)


@pytest.mark.parametrize("step", [SLOWER, dataclasses.replace(SLOWER, change=-0.2)])
def test_a_cap_that_fell_and_came_back_counts_where_the_tokens_followed(step: Step) -> None:
    found = tell(cell(2_800_000, DIP), step)
    assert len(found.reasons) == 1
    assert "fell inside spec2, 2.80 GHz to 1.80 GHz after 3.2 s" in found.reasons[0]


def test_it_is_a_note_where_they_did_not_and_a_reason_where_nobody_knows() -> None:
    assert not tell(cell(2_800_000, DIP), STEADY).reasons
    assert tell(cell(2_800_000, DIP), STEADY).notes
    assert tell(cell(2_800_000, DIP), None).reasons


def test_a_cap_that_stayed_down_is_left_to_the_states_that_show_it() -> None:
    record = cell(1_800_000, DIP)
    assert cap_dips(record) == ()
    assert tell(record, SLOWER) == tell(cell(2_800_000), SLOWER)


def test_a_temperature_never_discards_a_cell() -> None:
    found = tell(cell(2_800_000, HEAT), SLOWER)
    assert found.reasons == ()
    assert found.notes == (f"{HOT} went from 60.0 to 91.5 °C within 12.0 s, 90 °C allowed",)
