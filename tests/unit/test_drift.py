"""The drift between two cells of the baseline, as both designs use it."""

from __future__ import annotations

from typing import Any

import pytest

from harness.analysis.drift import DriftSettings, drift_between
from harness.analysis.usable import no_speed, too_long_a_break
from harness.readings import CpufreqState, DeviceState, Excursion
from harness.records import ArmIdentity, CellRecord, Counters, Metrics, TargetId, Wait

SETTINGS = DriftSettings()


def cell(index: int, tok_s: float | None = 5.0, **changes: Any) -> CellRecord:
    fields: dict[str, Any] = {
        "cell": f"B_{index}",
        "arm": "B",
        "role": "baseline",
        "index": index,
        "status": "ok",
        "exit_code": 0,
        "argv": (),
        "target": TargetId("local", "localhost"),
        "counters": Counters(tokens=128, read_bytes=1000),
        "metrics": Metrics(tok_s=tok_s),
        "identity": ArmIdentity(model_sha256="a"),
    }
    return CellRecord(**(fields | changes))


def capped(ghz: float) -> DeviceState:
    return DeviceState(cpufreq=(CpufreqState("policy0", scaling_max_khz=round(ghz * 1e6)),))


@pytest.mark.parametrize(
    ("closing", "verdict"),
    [(5.0, "stable"), (4.75, "stable"), (5.25, "stable"), (4.74, "drifting"), (5.26, "drifting")],
)
def test_within_five_percent_is_stable(closing: float, verdict: str) -> None:
    cells = [cell(0), cell(9, closing)]
    drift = drift_between(cells[0], cells[1:], cells, SETTINGS)
    assert drift.verdict == verdict
    assert drift.sentinel_change_pct == pytest.approx((closing / 5 - 1) * 100)
    assert f"B_9 {closing:.2f} tok/s against B_0 5.00 tok/s" in drift.reasons[0]


def test_the_repeat_that_is_furthest_off_decides() -> None:
    cells = [cell(0), cell(4, 4.0), cell(9, 5.0)]
    drift = drift_between(cells[0], cells[1:], cells, SETTINGS)
    assert (drift.verdict, drift.sentinel_change_pct) == ("drifting", pytest.approx(-20))


def test_a_cap_that_fell_anywhere_between_is_throttling() -> None:
    cells = [
        cell(0, entry=capped(3.0)),
        cell(4, entry=capped(2.5), arm="C", role="candidate"),
        cell(9, entry=capped(3.0)),
        cell(12, entry=capped(1.0), arm="C", role="candidate"),
    ]
    drift = drift_between(cells[0], [cells[2]], cells, SETTINGS)
    assert drift.verdict == "throttled"
    assert len([r for r in drift.reasons if "fell" in r]) == 1  # not the one after the last repeat
    assert drift.sentinel_change_pct == 0


def test_a_cap_that_fell_and_came_back_inside_a_cell_is_throttled_too() -> None:
    dip = Excursion(3200, "cap_drop", "policy0", 1_800_000, 2_520_000, 2_800_000)
    both = {"entry": capped(2.8), "exit": capped(2.8)}
    cells = [cell(0, **both), cell(1, **both, excursions=(dip,)), cell(2, **both)]
    drift = drift_between(cells[0], cells[2:], cells, SETTINGS)
    assert drift.verdict == "throttled"
    assert (
        "the cap of policy0 fell inside B_1, 2.80 GHz to 1.80 GHz after 3.2 s" in drift.reasons[-1]
    )
    # after the last repeat it says nothing of the cells before
    drift = drift_between(cells[0], [cells[0]], cells, SETTINGS)
    assert drift.verdict == "stable"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arm": "C"}, "is of arm C"),
        ({"counters": Counters(tokens=127, read_bytes=1000)}, "tokens"),
        ({"counters": Counters(tokens=128, read_bytes=1002)}, "read_bytes"),
        ({"identity": ArmIdentity(model_sha256="b")}, "model_sha256"),
    ],
)
def test_other_work_is_not_comparable(change: dict[str, Any], words: str) -> None:
    cells = [cell(0), cell(9, **change)]
    drift = drift_between(cells[0], cells[1:], cells, SETTINGS)
    assert (drift.verdict, drift.sentinel_change_pct) == ("not_comparable", None)
    assert words in "\n".join(drift.reasons)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": "failed", "status_detail": "I/O error"}, "B_1 failed (I/O error)"),
        ({"status": "killed"}, "B_1 was killed"),
        ({"metrics": Metrics()}, "the speed of B_1 was not measured"),
        ({"metrics": Metrics(tok_s=float("nan"))}, "the speed of B_1 was not measured"),
        ({"metrics": Metrics(tok_s=0.0)}, "the speed of B_1 was not measured"),
    ],
)
def test_why_a_cell_has_no_speed(changes: dict[str, Any], words: str) -> None:
    assert no_speed(cell(1, **changes)) == [words]
    assert no_speed(cell(1)) == []


def test_a_pause_that_was_meant_is_no_break() -> None:
    first = cell(0, started_unix_s=0.0, ended_unix_s=60.0)
    for started, long in ((95.0, False), (390.0, False), (391.0, True)):
        second = cell(1, started_unix_s=started, wait=Wait(30.0, "spacing"))
        assert bool(too_long_a_break(second, first, 300.0)) == long
    assert too_long_a_break(first, cell(1, started_unix_s=9999.0), 300.0) == []
