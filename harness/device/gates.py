"""What must hold before a cell starts, beside the pause: `schedule.gate`. Waits through its caller.

All conditions are read from one device state, and must hold in one and the same. The wait is
bounded; how it ended is recorded for each condition (`GateOutcome`), and nothing is waited for that
the device does not show.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.analysis.cpu_zones import hottest_cpu
from harness.events import GateReading
from harness.readings import DeviceState, GateOutcome, GateWhat
from harness.session_config import GateConfig

POLL_S = 2.0
MIB = 2**20

# seconds left at most, and how every condition stands
OnPoll = Callable[[float, tuple[GateReading, ...]], None]

NAMES: dict[GateWhat, str] = {
    "cpu_temp_c": "the CPU's temperature",
    "mem_available_bytes": "available memory",
    "cap_pct": "frequency caps",
}


def await_gates(
    read_state: Callable[[], DeviceState],
    gate: GateConfig,
    *,
    nap: Callable[[float], None],
    seen: Sequence[DeviceState] = (),
    on_poll: OnPoll = lambda _left, _readings: None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[GateOutcome, ...]:
    """Wait until all conditions hold at once, or for `wait_max_s`; empty where there are none.

    `nap` sleeps, and raises where a stop was asked for. `seen`: states of the campaign so far,
    minutes apart, which show the sensors that never move. Raises what `read_state` raises.
    """
    limits = _limits(gate)
    if not limits:
        return ()
    watched = [_Condition(what, limit) for what, limit in limits]
    looks: list[DeviceState] = []
    began = clock()
    while True:
        at_s = clock() - began if looks else 0.0
        state = read_state()
        for condition in watched:
            condition.look(at_s, state, seen, looks)
        looks.append(state)
        left_s = gate.wait_max_s - (clock() - began)
        if not any(c.is_awaited for c in watched) or left_s <= 0:
            return tuple(c.outcome(at_s) for c in watched)
        on_poll(left_s, tuple(c.reading for c in watched))
        nap(min(POLL_S, left_s))


def unreadable(state: DeviceState, gate: GateConfig) -> tuple[GateWhat, ...]:
    """The conditions of which the device shows nothing, so that they will not be waited for."""
    return tuple(what for what, _ in _limits(gate) if _read(what, state, (), ()).value is None)


def missed(outcomes: Sequence[GateOutcome]) -> tuple[GateOutcome, ...]:
    """Those that did not hold in time, for which `on_timeout` is."""
    return tuple(o for o in outcomes if o.outcome == "timeout")


def outcome_in_words(o: GateOutcome) -> str:
    """`CPU 59.8 °C (thermal_zone3.cpu) after 34 s, at most 60 °C asked for`."""
    if o.outcome == "unreadable":
        why = f" ({o.detail})" if o.detail else ""
        return f"{NAMES[o.what]} cannot be read on this device{why}: not waited for"
    when = "at once" if o.waited_s == 0 else f"after {o.waited_s:.0f} s"
    words = f"{value_in_words(o.what, o.value, o.sensor)}, {limit_in_words(o.what, o.limit)}"
    return f"{words}: {'met' if o.outcome == 'met' else 'not met'} {when}"


def value_in_words(what: GateWhat, value: float | None, sensor: str | None) -> str:
    """What a condition read last."""
    if value is None:
        return f"{NAMES[what]} cannot be read"
    if what == "cpu_temp_c":
        return f"CPU {value:.1f} °C ({sensor})"
    if what == "mem_available_bytes":
        return f"{value / MIB:.0f} MiB available"
    return f"cap of {sensor} {value:.0f} % of its maximum"


def limit_in_words(what: GateWhat, limit: float) -> str:
    """What it asks for."""
    if what == "cpu_temp_c":
        return f"at most {limit:g} °C"
    return f"at least {limit / MIB:.0f} MiB" if what != "cap_pct" else f"at least {limit:g} %"


# --- conditions ----------------------------------------------------------------------------------


def _limits(gate: GateConfig) -> list[tuple[GateWhat, float]]:
    memory = gate.mem_available_min_mb
    limits: list[tuple[GateWhat, float | None]] = [
        ("cpu_temp_c", gate.cpu_temp_max_c),
        ("mem_available_bytes", None if memory is None else float(memory * MIB)),
        ("cap_pct", gate.cap_min_pct),
    ]
    return [(what, limit) for what, limit in limits if limit is not None]


@dataclass(frozen=True)
class _Reading:
    """`turned_down`: why what there is to read is no measure; then `value` is None."""

    value: float | None = None
    sensor: str | None = None
    turned_down: str | None = None


class _Condition:
    """One condition from its first look to its last."""

    def __init__(self, what: GateWhat, limit: float) -> None:
        self._what, self._limit = what, limit
        self._now = _Reading()
        self._last = _Reading()  # the last one with a value
        self._held_since_s: float | None = None

    def look(
        self,
        at_s: float,
        state: DeviceState,
        seen: Sequence[DeviceState],
        looks: Sequence[DeviceState],
    ) -> None:
        self._now = _read(self._what, state, seen, looks)
        if self._now.value is not None:
            self._last = self._now
        if not self._holds:
            self._held_since_s = None
        elif self._held_since_s is None:
            self._held_since_s = at_s

    @property
    def _holds(self) -> bool:
        value = self._now.value
        if value is None:
            return False
        return value <= self._limit if self._what == "cpu_temp_c" else value >= self._limit

    @property
    def _is_readable(self) -> bool:
        """A sensor that answered once will again; one that was turned down is none."""
        return self._now.turned_down is None and self._last.value is not None

    @property
    def is_awaited(self) -> bool:
        return self._is_readable and not self._holds

    @property
    def reading(self) -> GateReading:
        now = self._now
        return GateReading(self._what, self._limit, now.value, now.sensor, self._holds)

    def outcome(self, at_s: float) -> GateOutcome:
        if not self._is_readable:
            detail = self._now.turned_down
            return GateOutcome(self._what, "unreadable", self._limit, detail=detail)
        value, sensor = self._last.value, self._last.sensor
        if self._held_since_s is None:
            return GateOutcome(self._what, "timeout", self._limit, value, sensor, at_s)
        return GateOutcome(self._what, "met", self._limit, value, sensor, self._held_since_s)


def _read(
    what: GateWhat,
    state: DeviceState,
    seen: Sequence[DeviceState],
    looks: Sequence[DeviceState],
) -> _Reading:
    if what == "cpu_temp_c":
        hottest = hottest_cpu(state, seen, looks)
        none_left = hottest.temp_c is None and hottest.rejected
        return _Reading(
            hottest.temp_c, hottest.zone, "; ".join(hottest.rejected) if none_left else None
        )
    if what == "mem_available_bytes":
        available = state.mem_available_bytes
        return _Reading(None if available is None else float(available))
    shares = [
        (c.scaling_max_khz / c.cpuinfo_max_khz * 100, c.policy)
        for c in state.cpufreq
        if c.scaling_max_khz and c.cpuinfo_max_khz
    ]
    return _Reading(*min(shares)) if shares else _Reading()
