"""Conditions and excursions of the device in words, for the terminal. Touches nothing."""

from __future__ import annotations

from collections.abc import Sequence

from harness.device.gates import limit_in_words, value_in_words
from harness.events import GateReading, LiveReadings
from harness.readings import Excursion

_WHAT = {
    "cpu_temp_max": "CPU temperature",
    "cpu_temp_rise": "rise of the CPU temperature",
    "cap_drop": "frequency cap",
}


def waited_for(readings: Sequence[GateReading]) -> list[str]:
    """What does not hold yet: where it stands, and its limit."""
    return [
        f"{value_in_words(r.what, r.value, r.sensor)}, {limit_in_words(r.what, r.limit)}"
        for r in readings
        if not r.holds
    ]


def readings_in_words(r: LiveReadings, limit_bytes: int | None) -> list[str]:
    """The device under a running cell, and its anonymous memory against the limit if it has one."""
    fields = [] if r.cpu_temp_c is None else [f"CPU {r.cpu_temp_c:.1f} °C"]
    if r.anon_bytes is not None:
        limit = "" if limit_bytes is None else f" of {_mib(limit_bytes)}"
        peak = r.anon_peak_bytes or 0
        was = f", peak {_mib(peak)}" if _mib(peak) != _mib(r.anon_bytes) else ""
        fields.append(f"anon {_mib(r.anon_bytes)}{limit} MiB{was}")
    for cap in r.moved_caps:
        now, before = cap.now_khz / 1e6, cap.start_khz / 1e6
        fields.append(f"cap of {cap.policy} {now:.2f} GHz, was {before:.2f}")
    return fields


def _mib(n: int) -> str:
    return f"{n / 2**20:.0f}"


def excursion_in_words(e: Excursion) -> str:
    """`frequency cap of policy4 fell from 2.80 to 1.80 GHz (36 % less) 4.2 s into the cell`."""
    at = f"{e.t_ms / 1000:.1f} s into the cell"
    if e.what == "cap_drop":
        less = (1 - e.value / e.start) * 100
        return (
            f"{_WHAT[e.what]} of {e.sensor} fell from {e.start / 1e6:.2f} to {e.value / 1e6:.2f} "
            f"GHz ({less:.0f} % less) {at}"
        )
    limit = f"{e.limit:g} °C allowed"
    return f"{_WHAT[e.what]} ({e.sensor}): {e.value:.1f} °C from {e.start:.1f}, {limit}, {at}"
