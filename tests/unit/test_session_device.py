"""What a session waits for and watches: gates before a cell, sentinels inside one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cell_parts import make_arm, make_plan
from test_session import Bench, Clock, ScriptedTarget

from harness.collect import DEVICE
from harness.errors import DeviceError, Interrupted
from harness.events import AtGate, CellExcursion, CellFinished, CellRepeated, GatePassed
from harness.journal import read_journal
from harness.jsonable import to_json
from harness.readings import DeviceState, ThermalState
from harness.records import CellRecord
from harness.session_config import GateConfig, SessionConfig
from harness.targets.link import Finished

PLAN = make_plan(make_arm("baseline"), make_arm("half"), wait_s=30)
HEADER = "t_ms,mem_available_bytes,policy0.max_khz,thermal_zone0.cpu.temp_c\n"
CALM = HEADER + "0,1,2000000,40\n250,1,2000000,41\n"
CAPPED = CALM + "500,1,1000000,41\n"


class WatchedTarget(ScriptedTarget):
    """`temps`: what the CPU reads at each look, the last one for ever; `tables`: device.csv of each
    start."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.temps = [40.0]
        self.tables: list[str] = []
        self.on_start = self._write

    def call(self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Finished:
        assert list(argv)[1:] == ["state"]
        temp = self.temps.pop(0) if len(self.temps) > 1 else self.temps[0]
        state = DeviceState(thermal=(ThermalState("thermal_zone0", "cpu", temp),))
        return Finished(0, json.dumps(to_json(state)).encode(), b"")

    def tail(self, path: Path, size: int) -> bytes:
        return path.read_bytes()[-size:] if path.name == DEVICE else super().tail(path, size)

    def _write(self, work_dir: Path) -> None:
        (work_dir / DEVICE).write_text(self.tables.pop(0) if self.tables else CALM)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    found = Bench(tmp_path)
    found.target = WatchedTarget(found.clock)
    return found


def run(bench: Bench, **options: Any) -> list[CellRecord]:
    bench.options = options
    return bench.run(PLAN)


def gates_of(record: CellRecord) -> list[tuple[str, float | None]]:
    assert record.wait is not None
    return [(o.outcome, o.value) for o in record.wait.gates]


def temps(bench: Bench, *readings: float) -> None:
    assert isinstance(bench.target, WatchedTarget)
    bench.target.temps = list(readings)


def tables(bench: Bench, *contents: str) -> None:
    assert isinstance(bench.target, WatchedTarget)
    bench.target.tables = list(contents)


# --- gates ---------------------------------------------------------------------------------------


def test_a_cell_waits_for_its_device_after_its_pause(bench: Bench) -> None:
    temps(bench, 40, 80, 70, 50)
    records = run(bench, gate=GateConfig(cpu_temp_max_c=60))
    assert [gates_of(r) for r in records] == [[("met", t)] for t in (40, 50, 50)]
    second = records[1].wait
    assert second is not None
    assert second.seconds == pytest.approx(34, abs=0.5)  # spacing, and two looks in vain
    assert second.gates[0].waited_s == pytest.approx(4, abs=0.5)
    at_gate = bench.of(AtGate)
    assert [e.readings[0].value for e in at_gate] == [80, 70]
    assert {e.cell.index for e in at_gate} == {1}
    assert len(bench.of(GatePassed)) == 3


def test_without_conditions_the_device_is_not_asked(bench: Bench) -> None:
    def refuse(argv: Sequence[str], **_options: Any) -> Finished:
        raise AssertionError(argv)

    bench.target.call = refuse  # type: ignore[method-assign]
    assert all(gates_of(r) == [] for r in run(bench))


@pytest.mark.parametrize("on_timeout", ["run", "stop"])
def test_what_does_not_come_in_time_is_recorded_or_ends_the_campaign(
    bench: Bench, on_timeout: Any
) -> None:
    gate = GateConfig(cpu_temp_max_c=60, wait_max_s=20, on_timeout=on_timeout)
    temps(bench, 40, 80)
    if on_timeout == "run":
        records = run(bench, gate=gate)
        assert [gates_of(r) for r in records] == [
            [("met", 40)],
            [("timeout", 80)],
            [("timeout", 80)],
        ]
        return
    with pytest.raises(DeviceError, match=r"half.*CPU 80\.0 °C.*at most 60 °C: not met after 20 s"):
        run(bench, gate=gate)
    assert [name for _, name in bench.target.started] == ["00-baseline"]
    temps(bench, 40)
    assert len(run(bench, gate=gate)) == 3  # resumed


def test_a_stop_is_heeded_at_a_gate(bench: Bench) -> None:
    temps(bench, 80)
    bench.on_event = lambda e: bench.stop.request("SIGINT") if isinstance(e, AtGate) else None
    with pytest.raises(Interrupted):
        run(bench, gate=GateConfig(cpu_temp_max_c=60))
    assert bench.target.started == []


# --- sentinels -----------------------------------------------------------------------------------


def test_an_excursion_marks_the_cell_at_once(bench: Bench) -> None:
    tables(bench, CALM, CAPPED, CALM)
    records = run(bench)
    assert [[e.what for e in r.excursions or ()] for r in records] == [[], ["cap_drop"], []]
    told = [type(e) for e in bench.events if isinstance(e, CellExcursion | CellFinished)]
    assert told == [CellFinished, CellExcursion, CellFinished, CellFinished]


def test_a_throttled_cell_is_run_again_and_its_files_stay(bench: Bench) -> None:
    tables(bench, CALM, CAPPED, CALM)
    records = run(bench, limits=SessionConfig(on_throttle="repeat"))
    assert all(r.excursions == () for r in records)
    assert len(bench.of(CellRepeated)) == 1
    assert (bench.dir / "cells" / "01-half.aborted-1" / DEVICE).read_text() == CAPPED
    started = [name for _, name in bench.target.started]
    assert started == ["00-baseline", "01-half", "01-half", "02-sentinel"]
    gap = bench.target.started[2][0] - bench.target.started[1][0]
    assert 30 < gap < 33  # its pause, and about a second in which it was noticed


def test_the_last_attempt_counts_whatever_happens(bench: Bench) -> None:
    tables(bench, CALM, CAPPED, CAPPED, CALM)
    records = run(bench, limits=SessionConfig(on_throttle="repeat", max_repeats=1))
    assert [len(r.excursions or ()) for r in records] == [0, 1, 0]
    assert len(bench.of(CellRepeated)) == 1
    assert sum(e.event == "cell_repeated" for e in read_journal(bench.dir)) == 1


@pytest.mark.parametrize("live", [True, False])
def test_a_campaign_stops_there_and_goes_on_with_that_cell(
    bench: Bench, live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not live:  # it came after the last look
        quiet: Callable[..., tuple[()]] = lambda _self: ()  # noqa: E731
        monkeypatch.setattr("harness.device.sentinel.LiveSentinel.look", quiet)
    tables(bench, CALM, CAPPED)
    limits = SessionConfig(on_throttle="stop")
    with pytest.raises(DeviceError, match=r"cell half does not count, throttled: frequency cap"):
        run(bench, limits=limits)
    records = run(bench, limits=limits)
    assert [r.cell for r in records] == ["baseline", "half", "sentinel"]
    assert records[1].excursions == ()
    assert dataclasses.asdict(records[1])["status"] == "ok"
