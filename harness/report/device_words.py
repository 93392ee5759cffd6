"""Conditions and excursions of the device in words, for the terminal. Touches nothing."""

from __future__ import annotations

from collections.abc import Sequence

from harness.device.gates import limit_in_words, value_in_words
from harness.events import GateReading
from harness.records import Excursion

_WHAT = {
    "cpu_temp_max": "CPU temperature",
    "cpu_temp_rise": "rise of the CPU temperature",
    "cap_drop": "frequency cap",
}


def waited_for(readings: Sequence[GateReading], seconds_left: float) -> str:
    """What does not hold yet, where it stands, and how much longer it may take."""
    open_ones = [
        f"{value_in_words(r.what, r.value, r.sensor)}, {limit_in_words(r.what, r.limit)}"
        for r in readings
        if not r.holds
    ]
    return f"waiting at most {seconds_left:.0f} s for: {'; '.join(open_ones)}"


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
