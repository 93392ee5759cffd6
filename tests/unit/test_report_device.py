"""Waits for conditions, and what goes beyond limits, in a terminal and in a log file."""

from __future__ import annotations

from test_report_terminal import CELL, RECORD, Tty, shown

from harness.events import (
    AtGate,
    CellExcursion,
    CellFinished,
    CellStarted,
    GatePassed,
    GateReading,
)
from harness.readings import Excursion, GateOutcome

READINGS = (
    GateReading("cpu_temp_c", 60, 71.23, "thermal_zone3.cpu-0-0", False),
    GateReading("mem_available_bytes", 2048 * 2**20, 4096.0 * 2**20, None, True),
    GateReading("cap_pct", 90, None, None, False),
)
OUTCOMES = (
    GateOutcome("cpu_temp_c", "met", 60, 59.8, "thermal_zone3.cpu-0-0", 34.1),
    GateOutcome("mem_available_bytes", "met", 2048 * 2**20, 4096.0 * 2**20),
    GateOutcome("cap_pct", "timeout", 90, 60, "policy4", 600.0),
)
CPU = Excursion(12_345, "cpu_temp_max", "thermal_zone3.cpu", 91.23, 90, 60)
CAP = Excursion(4_200, "cap_drop", "policy4", 1_800_000, 2_520_000, 2_800_000)


def test_a_log_says_once_what_is_waited_for_and_how_it_ended() -> None:
    text = shown(
        ("event", CellFinished(CELL, 4, RECORD)),
        ("event", AtGate(CELL, 4, 599.9, READINGS)),
        ("event", AtGate(CELL, 4, 597.9, READINGS)),
        ("event", GatePassed(CELL, 4, OUTCOMES)),
        ("event", CellStarted(CELL, 4)),
        ("event", CellExcursion(CELL, 4, CPU)),
        ("event", CellExcursion(CELL, 4, CAP)),
    )
    place = "cell 2 of 4 cache_half: "
    assert text.splitlines()[1:] == [
        place + "waiting at most 600 s for: CPU 71.2 °C (thermal_zone3.cpu-0-0), at most 60 °C; "
        "frequency caps cannot be read, at least 90 %",
        place + "CPU 59.8 °C (thermal_zone3.cpu-0-0), at most 60 °C: met after 34 s",
        place + "cap of policy4 60 % of its maximum, at least 90 %: not met after 600 s",
        place + "running",
        place + "CPU temperature (thermal_zone3.cpu): 91.2 °C from 60.0, 90 °C allowed, "
        "12.3 s into the cell",
        place + "frequency cap of policy4 fell from 2.80 to 1.80 GHz (36 % less) 4.2 s into the "
        "cell",
    ]


def test_a_terminal_shows_every_look() -> None:
    text = shown(
        ("event", AtGate(CELL, 4, 599.9, READINGS)),
        ("event", AtGate(CELL, 4, 597.9, READINGS)),
        stream=Tty(),
    )
    assert "at most 600 s" in text
    assert "at most 598 s" in text
