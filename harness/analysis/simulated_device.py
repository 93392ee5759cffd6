"""The simulated device: clock, heat, frequency cap, disturbances, memory. Pure.

One thermal mass, heated in proportion to the clock while a cell runs. The governor takes the cap
down a step at each trip point and gives it back in a pause that is cool enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.scenarios import CAPS_KHZ, CapStep, Episodes, Range, Scenario
from harness.analysis.series import Array
from harness.readings import BatteryState, CpufreqState, DeviceState, ProbeResult, ThermalState

PROBE_S = 2.0
LOAD_S = 24.0
_PROBE_MS = 100.0
_PROBE_LOG_SD = 0.0125
_MEM_BYTES = 6.95e9
_MEM_SD_BYTES = 0.22e9
_ABOVE_AMBIENT_C = 2.0  # a device that is used is warmer than the room
_DUTY = 47 / 77  # share of the time that a cell runs, where the figures of `Heating` hold
_RECOVERS_BELOW_C = 1.5
# how far the CPU is above the battery at rest, and at full clock
_IDLE_CPU_C = 11.0
_BUSY_CPU_C = 28.0
_CPU_SD_C = 1.2
_EPOCH_S = 1.75e9
# the longest a cell may take for the disturbances to last through the campaign
_CELL_S_AT_MOST = 400.0


@dataclass(frozen=True)
class Slowness:
    """The device at some moments; arrays of one shape.

    Factors on the time of computing, of reading, and of both for want of memory, which a probe of
    its own small memory does not feel. `pressure`: from 0 to 1; `burst`: in one.
    """

    compute: Array
    io: Array
    memory: Array
    pressure: Array
    burst: NDArray[np.bool_]


@dataclass(frozen=True)
class _CellStart:
    at_s: float
    battery_c: float
    steps_down: int


class Device:
    """A device through one campaign: `begin` a cell, ask its `slowness`, `end` it, and again."""

    def __init__(self, scenario: Scenario, rng: np.random.Generator, cells: int) -> None:
        heating, soft, pressure = scenario.heating, scenario.soft, scenario.pressure
        self._start_c = drawn(rng, heating.start_c)
        self._ambient_c = self._start_c - _ABOVE_AMBIENT_C
        self._heat_c = (drawn(rng, heating.rise_c) + _ABOVE_AMBIENT_C) / _DUTY
        self._tau_s = drawn(rng, heating.tau_s)
        self._trips_c = np.sort([drawn(rng, step.trip_c) for step in scenario.caps])
        self._compute_at, self._io_at = _at_caps(scenario.caps)
        self._soft = soft
        self._soft_log = drawn(rng, soft.log_max) if soft else 0.0
        self._soft_onset_c = drawn(rng, soft.onset_c) if soft else 0.0
        self._pressure = pressure
        self._pressure_tau_s = drawn(rng, pressure.tau_s) if pressure else 1.0
        self._steps = _Timeline(scenario.steps, rng, cells * _CELL_S_AT_MOST)
        self._bursts = _Timeline(scenario.bursts, rng, cells * _CELL_S_AT_MOST)
        self._rng = rng
        self.clock_s = 0.0
        self._battery_c = self._start_c
        self._steps_down = 0
        self._cell = _CellStart(0.0, self._start_c, 0)

    def begin(self, wait_s: float) -> None:
        """Rest for `wait_s` seconds, then begin a cell."""
        self.clock_s += wait_s
        above_c = self._battery_c - self._ambient_c
        self._battery_c = self._ambient_c + above_c * math.exp(-wait_s / self._tau_s)
        rise_c = self._battery_c - self._start_c
        while self._steps_down and rise_c < self._trips_c[self._steps_down - 1] - _RECOVERS_BELOW_C:
            self._steps_down -= 1
        self._cell = _CellStart(self.clock_s, self._battery_c, self._steps_down)

    def end(self, at_s: float) -> None:
        """The cell's last token came at `at_s`; the probe after it follows."""
        at = np.array([at_s])
        self._battery_c = float(self._battery(at)[0])
        self._steps_down = int(self._caps_down(at)[0])
        self.clock_s = at_s

    def slowness(self, at_s: Array) -> Slowness:
        """At moments, in seconds, of the cell begun last."""
        down = self._caps_down(at_s)
        pressed, burst = self._pressed(at_s), self._bursts.log_size(at_s)
        both = burst
        if self._soft:
            rise_c = self._battery(at_s) - self._start_c - self._soft_onset_c
            both = both - self._soft_log * np.expm1(-np.maximum(rise_c, 0.0) / self._soft.scale_c)
        stepped = self._steps.log_size(at_s)
        return Slowness(
            compute=np.exp(both + stepped) * self._compute_at[down],
            io=np.exp(both + stepped * self._steps.io_share) * self._io_at[down],
            memory=np.exp(pressed * (self._pressure.log_creep if self._pressure else 0.0)),
            pressure=pressed,
            burst=burst > 0,
        )

    def probe(self) -> ProbeResult:
        """Two seconds of half computing, half reading; one figure for both, as the logs have it."""
        now = self.slowness(np.array([self.clock_s + PROBE_S / 2]))
        self.clock_s += PROBE_S
        ms = _PROBE_MS * float(np.sqrt(now.compute * now.io)[0])
        noise = math.exp(_PROBE_LOG_SD * self._rng.standard_normal())
        return ProbeResult(compute_ms=round(ms * noise, 2), wall_s=PROBE_S)

    def state(self, *, busy: bool) -> DeviceState:
        """What the device shows now; `busy`: the engine has just ended."""
        cap = CAPS_KHZ[self._steps_down]
        above_c = _BUSY_CPU_C * cap / CAPS_KHZ[0] if busy else _IDLE_CPU_C
        cpu_c = self._battery_c + above_c + _CPU_SD_C * self._rng.standard_normal()
        mem = _MEM_BYTES + _MEM_SD_BYTES * self._rng.standard_normal()
        if self._pressure:
            mem -= self._pressure.fall_bytes * float(self._pressed(np.array([self.clock_s]))[0])
        return DeviceState(
            unix_s=_EPOCH_S + round(self.clock_s, 3),
            mem_total_bytes=12_000_000_000,
            mem_available_bytes=int(mem),
            cpufreq=(CpufreqState("policy0", "0-7", cap, cpuinfo_max_khz=CAPS_KHZ[0]),),
            thermal=(ThermalState("thermal_zone0", "cpu", round(cpu_c, 1)),),
            battery=BatteryState(temp_c=round(self._battery_c, 1)),
        )

    def _battery(self, at_s: Array) -> Array:
        """Its temperature in the cell begun last; the heat follows the cap at the cell's start."""
        start = self._cell
        hot_c = self._ambient_c + self._heat_c * CAPS_KHZ[start.steps_down] / CAPS_KHZ[0]
        cooled: Array = np.exp(-(at_s - start.at_s) / self._tau_s)
        return hot_c + (start.battery_c - hot_c) * cooled

    def _caps_down(self, at_s: Array) -> NDArray[np.int64]:
        rise_c = self._battery(at_s) - self._start_c
        tripped = np.searchsorted(self._trips_c, rise_c, side="right")
        return np.maximum.accumulate(np.maximum(tripped, self._cell.steps_down))

    def _pressed(self, at_s: Array) -> Array:
        if self._pressure is None:
            return np.zeros(len(at_s))
        return -np.expm1(-at_s / self._pressure_tau_s)


class _Timeline:
    """When the episodes of one kind are, and how large."""

    def __init__(self, kind: Episodes | None, rng: np.random.Generator, until_s: float) -> None:
        self.io_share = kind.io_share if kind else 0.0
        self._edges_s: Array = np.empty(0)
        if kind is not None:
            # so many that the last ends after `until_s`, but for a chance of one in millions
            n = 20 + int(2 * until_s / (kind.on_s + kind.off_s))
            lengths = rng.standard_exponential((n, 2)) * (kind.off_s, kind.on_s)
            self._edges_s = np.cumsum(lengths.ravel())
            self._sizes = rng.uniform(*kind.log_size, n)

    def log_size(self, at_s: Array) -> Array:
        """ln of the slowdown at each moment, 0 outside the episodes."""
        if not len(self._edges_s):
            return np.zeros(len(at_s))
        edge = np.searchsorted(self._edges_s, at_s, side="right")
        return np.where(edge % 2 == 1, self._sizes[np.minimum(edge // 2, len(self._sizes) - 1)], 0)


def drawn(rng: np.random.Generator, of: Range) -> float:
    """One value of the range."""
    return float(rng.uniform(*of))


def _at_caps(steps: tuple[CapStep, ...]) -> tuple[Array, Array]:
    """Factors on computing and on reading by the number of steps that the cap is down."""
    compute = [1.0] + [
        CAPS_KHZ[0] / khz * step.compute for khz, step in zip(CAPS_KHZ[1:], steps, strict=False)
    ]
    return np.array(compute), np.array([1.0] + [step.io for step in steps])
