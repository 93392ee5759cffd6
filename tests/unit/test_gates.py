"""Conditions before a cell, on made-up device states and a made-up clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.cpu_zones import hottest_cpu
from harness.device.gates import (
    MIB,
    POLL_S,
    await_gates,
    missed,
    outcome_in_words,
    unreadable,
)
from harness.errors import Interrupted, UsageError
from harness.events import GateReading
from harness.readings import CpufreqState, DeviceState, GateOutcome, ThermalState
from harness.session_config import GateConfig, SessionConfig, check_session

ALL = GateConfig(cpu_temp_max_c=60, mem_available_min_mb=2048, cap_min_pct=90, wait_max_s=30)


def state(
    *temps: float | tuple[str, float], mem_mib: int | None = 4096, cap_pct: float | None = 100
) -> DeviceState:
    zones = [t if isinstance(t, tuple) else (f"cpu-{i}", t) for i, t in enumerate(temps)]
    return DeviceState(
        mem_available_bytes=None if mem_mib is None else mem_mib * MIB,
        thermal=tuple(
            ThermalState(f"thermal_zone{i}", kind, temp) for i, (kind, temp) in enumerate(zones)
        ),
        cpufreq=()
        if cap_pct is None
        else (
            CpufreqState("policy0", scaling_max_khz=2_000_000, cpuinfo_max_khz=2_000_000),
            CpufreqState(
                "policy4", scaling_max_khz=round(28_000 * cap_pct), cpuinfo_max_khz=2_800_000
            ),
        ),
    )


class Bench:
    """Shows one state after the other, the last one for ever; time passes while it naps."""

    def __init__(self, states: Sequence[DeviceState]) -> None:
        self.states = list(states)
        self.now = 50.0
        self.polls: list[tuple[float, tuple[GateReading, ...]]] = []

    def read(self) -> DeviceState:
        self.now += 0.125  # the launcher takes its time
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def nap(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, gate: GateConfig, seen: Sequence[DeviceState] = ()) -> tuple[GateOutcome, ...]:
        return await_gates(
            self.read,
            gate,
            nap=self.nap,
            seen=seen,
            on_poll=lambda left, readings: self.polls.append((left, readings)),
            clock=lambda: self.now,
        )


def waited(gate: GateConfig, *states: DeviceState) -> tuple[GateOutcome, ...]:
    return Bench(states).wait(gate)


def test_nothing_is_asked_of_the_device_where_nothing_is_waited_for() -> None:
    def never() -> DeviceState:
        raise AssertionError("the device was asked")

    assert await_gates(never, GateConfig(), nap=lambda _s: None) == ()


def test_what_holds_at_once_takes_no_time() -> None:
    bench = Bench([state(50.0, 55.5)])
    outcomes = bench.wait(ALL)
    assert outcomes == (
        GateOutcome("cpu_temp_c", "met", 60, 55.5, "thermal_zone1.cpu-1"),
        GateOutcome("mem_available_bytes", "met", 2048 * MIB, 4096 * MIB),
        GateOutcome("cap_pct", "met", 90, 100, "policy0"),
    )
    assert bench.polls == []
    assert outcome_in_words(outcomes[0]) == (
        "CPU 55.5 °C (thermal_zone1.cpu-1), at most 60 °C: met at once"
    )


def test_it_waits_until_the_last_of_several_holds_and_shows_where_they_stand() -> None:
    bench = Bench([state(80), state(61, mem_mib=100), state(60, mem_mib=100), state(59)])
    outcomes = bench.wait(dataclasses.replace(ALL, cap_min_pct=None))
    assert [o.outcome for o in outcomes] == ["met", "met"]
    each = POLL_S + 0.125
    assert [o.waited_s for o in outcomes] == [2 * each, 3 * each]
    assert [o.value for o in outcomes] == [59, 4096 * MIB]
    lefts = [left for left, _ in bench.polls]
    assert lefts == [30 - 0.125 - k * each for k in range(3)]
    assert [(r.value, r.holds) for _, readings in bench.polls for r in readings] == [
        *((80, False), (4096 * MIB, True)),
        *((61, False), (100 * MIB, False)),
        *((60, True), (100 * MIB, False)),
    ]


def test_a_condition_that_is_lost_again_counts_from_when_it_held_for_good() -> None:
    states = [state(50, cap_pct=50), state(70, cap_pct=50), state(50, cap_pct=95)]
    temp, _memory, cap = waited(ALL, *states)
    assert temp.waited_s == cap.waited_s == 2 * (POLL_S + 0.125)
    assert cap.value == pytest.approx(95)
    assert cap.sensor == "policy4"


def test_the_wait_is_bounded_and_says_so() -> None:
    bench = Bench([state(80, cap_pct=40)])
    outcomes = bench.wait(ALL)
    assert [o.outcome for o in outcomes] == ["timeout", "met", "timeout"]
    assert bench.now - 50 == pytest.approx(30, abs=0.2)
    assert outcomes[0].value == 80
    assert [o.what for o in missed(outcomes)] == ["cpu_temp_c", "cap_pct"]
    assert "cap of policy4 40 % of its maximum, at least 90 %: not met after 30 s" in (
        outcome_in_words(outcomes[2])
    )


def test_without_time_to_wait_it_looks_once() -> None:
    bench = Bench([state(80)])
    (outcome,) = bench.wait(GateConfig(cpu_temp_max_c=60, wait_max_s=0))
    assert (outcome.outcome, outcome.value, len(bench.polls)) == ("timeout", 80, 0)


def test_what_the_device_does_not_show_is_recorded_and_not_waited_for() -> None:
    blind = state(("battery", 90.0), ("gpu", 99.0), cap_pct=None, mem_mib=None)
    outcomes = waited(ALL, blind)
    assert [o.outcome for o in outcomes] == ["unreadable"] * 3
    assert all(o.value is None and o.waited_s == 0 for o in outcomes)
    assert unreadable(blind, ALL) == ("cpu_temp_c", "mem_available_bytes", "cap_pct")
    assert unreadable(state(50), ALL) == ()
    assert unreadable(blind, GateConfig()) == ()
    assert "cannot be read on this device: not waited for" in outcome_in_words(outcomes[0])


def test_a_sensor_that_is_silent_for_once_is_waited_for() -> None:
    (outcome,) = waited(GateConfig(cpu_temp_max_c=60), state(70), state(), state(58))
    assert (outcome.outcome, outcome.value) == ("met", 58)


def test_a_trip_point_is_found_out_and_then_no_longer_waited_for() -> None:
    bench = Bench([state(99.6)])
    (outcome,) = bench.wait(GateConfig(cpu_temp_max_c=60, wait_max_s=600))
    assert outcome.outcome == "unreadable"
    assert outcome.detail == "thermal_zone0 (cpu-0) reads 99.6 °C all 11 times"
    assert bench.now - 50 < 30


def test_a_trip_point_beside_a_thermometer_is_passed_over_from_what_was_seen_before() -> None:
    seen = [state(99.6, 40), state(99.6, 70), state(99.6, 45)]
    (outcome,) = Bench([state(99.6, 52)]).wait(GateConfig(cpu_temp_max_c=60), seen)
    assert (outcome.outcome, outcome.value, outcome.waited_s) == ("met", 52, 0)


def test_a_zone_that_stands_still_for_a_while_stays_a_thermometer() -> None:
    looks = [state(75.0, 40 + k) for k in range(20)]
    assert hottest_cpu(looks[-1], (), looks[:-1]).temp_c == 75


def test_zones_that_follow_the_cpu_best_are_the_ones_that_count() -> None:
    both = state(("acpitz", 70.0), ("soc-thermal", 60.0), ("cpu-1-0", 50.0), ("cpu-2", 48.0))
    assert hottest_cpu(both).temp_c == 50
    assert hottest_cpu(state(("acpitz", 70.0), ("soc-thermal", 60.0))).temp_c == 60
    assert hottest_cpu(state(("battery", 31.0))).temp_c is None


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_no_reading_outside_what_a_temperature_can_be_is_believed(reading: float) -> None:
    found = hottest_cpu(state(reading)).temp_c
    assert found == (reading if 1 <= reading <= 150 else None)


def test_a_stop_ends_the_wait_at_once() -> None:
    def stopped(_seconds: float) -> None:
        raise Interrupted("SIGINT")

    with pytest.raises(Interrupted):
        await_gates(lambda: state(99), GateConfig(cpu_temp_max_c=60), nap=stopped)


@pytest.mark.parametrize(
    ("session", "gate", "words"),
    [
        (SessionConfig(cap_drop_pct=None, on_throttle="stop"), GateConfig(), "on_throttle: stop"),
        (SessionConfig(), GateConfig(on_timeout="stop"), "schedule.gate.on_timeout: stop"),
    ],
)
def test_what_cannot_act_is_refused(session: SessionConfig, gate: GateConfig, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_session(session, gate)
