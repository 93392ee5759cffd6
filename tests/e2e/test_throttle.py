"""A phone that throttles in the middle of a campaign: caps fall, it heats up, its engine is slowed.

The phone is made up (tests/adb_device), its slowness is real: a CPU quota over all its processes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from adb_campaigns import SHORT, SURVEY, Phone, phone
from adb_device import why_unavailable
from quota_parts import CpuQuota, QuotaUnavailableError, cpu_quota

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        why_unavailable() is not None, reason=f"no made-up adb device: {why_unavailable()}"
    ),
]
HOT_C, COOL_C = 84.0, 39.1
CAPPED_KHZ, FULL_KHZ = 1_200_000, 2_841_600  # of the fast cores
CAP_FELL = "frequency cap of policy4 fell from 2.84 to 1.20 GHz"
# the third cell is spec2, the fourth the sentinel
# long enough to be found slow in, wherever the test itself is held up
TOKENS = "cell.n_predict=768"
MATCHED_PAIR = (*SHORT, "session.cpu_temp_rise_c=20", TOKENS)
# a cell begins on a phone that is cool
GATE = (
    *("schedule.gate.cap_min_pct=95", "schedule.gate.cpu_temp_max_c=60"),
    "schedule.gate.wait_max_s=300",
)


@dataclass
class Hot:
    """A phone and the quota that slows it down."""

    phone: Phone
    quota: CpuQuota

    def throttle(self) -> None:
        """The fast cores' cap falls, the CPU is hot, and everything there is slow."""
        device = self.phone.device
        device.set_temperature("thermal_zone2", HOT_C)
        device.set_cap("policy4", CAPPED_KHZ)
        device.set_thermal_status(3)
        self.quota.hold(0.2)

    def cool(self) -> None:
        device = self.phone.device
        device.set_temperature("thermal_zone2", COOL_C)
        device.set_cap("policy4", FULL_KHZ)
        device.set_thermal_status(0)
        self.quota.lift()


@pytest.fixture
def hot(tmp_path: Path) -> Iterator[Hot]:
    try:
        with cpu_quota() as quota, phone(tmp_path) as there:
            there.device.enter_cgroup(quota.entrance)
            try:
                yield Hot(there, quota)
            finally:
                there.device.leave_cgroup(quota.entrance)
    except QuotaUnavailableError as e:
        pytest.skip(str(e))


def test_what_runs_on_a_phone_that_stays_throttled_is_not_read(hot: Hot) -> None:
    campaign = hot.phone.start(*MATCHED_PAIR)
    campaign.until_in_cell(2, tokens=50)
    hot.throttle()
    campaign.until_said(f"cell 3 of 4 spec2: {CAP_FELL}")
    # while the cell is running
    assert [e["index"] for e in campaign.of("cell_finished")] == [0, 1]
    campaign.ended_well()
    baseline, retention, spec2, sentinel = campaign.records

    found = {e["what"]: e for e in spec2["excursions"]}
    assert set(found) == {"cap_drop", "cpu_temp_rise"}
    cap, heat = found["cap_drop"], found["cpu_temp_rise"]
    assert (cap["sensor"], cap["start"], cap["value"]) == ("policy4", FULL_KHZ, CAPPED_KHZ)
    assert (heat["value"], heat["start"]) == (HOT_C, COOL_C)
    assert heat["sensor"].startswith("thermal_zone2")
    assert baseline["excursions"] == retention["excursions"] == []
    # it entered the last cell as it left the third, so nothing moved in there
    assert sentinel["excursions"] == []
    assert hot.quota.held_back_s > 0.5  # (its speed says little where others use the machine)

    verdict = campaign.verdict
    assert verdict["drift"]["verdict"] == "throttled"
    assert any("the cap of policy4 fell" in r for r in verdict["drift"]["reasons"])
    assert "drift: throttled: the device lowered a frequency cap" in campaign.out
    outcomes = {v["candidate"]: v["outcome"] for v in verdict["verdicts"]}
    assert outcomes["spec2"] == "unreadable"
    assert not set(outcomes.values()) & {"win", "loss"}  # retention ran while all was well
    cells = {c["cell"]: c for c in verdict["cells"]}
    assert cells["spec2"]["status"] == cells["sentinel"]["status"] == "contaminated"
    moved = "the cap of policy4 moved inside spec2, 2.84 GHz to 1.20 GHz"
    assert any(moved in said for said in cells["spec2"]["reasons"] + cells["spec2"]["notes"])
    entered = "the cap of policy4 at entry is 1.20 GHz, 2.84 GHz for spec2"
    assert any(entered in reason for reason in cells["sentinel"]["reasons"])
    hot.cool()
    hot.phone.is_as_before()


def test_a_phone_that_throttles_in_one_cell_makes_that_cell_unreadable(hot: Hot) -> None:
    campaign = hot.phone.start(*MATCHED_PAIR, "session.cpu_temp_max_c=70", *GATE)
    campaign.until_in_cell(2, tokens=50)
    hot.throttle()
    campaign.until("the cell is over", lambda: len(campaign.of("cell_finished")) == 3)
    hot.cool()
    campaign.ended_well()
    assert f"cell 3 of 4 spec2: {CAP_FELL}" in campaign.out
    heat = "cell 3 of 4 spec2: CPU temperature (thermal_zone2.cpu-1-0): 84.0 °C"
    assert heat in campaign.out

    found = [{e["what"] for e in r["excursions"]} for r in campaign.records]
    assert found == [set(), set(), {"cap_drop", "cpu_temp_max", "cpu_temp_rise"}, set()]
    verdict = campaign.verdict
    assert verdict["drift"]["verdict"] == "throttled"
    assert any("policy4" in reason for reason in verdict["drift"]["reasons"])
    by_name = {v["candidate"]: v for v in verdict["verdicts"]}
    assert by_name["spec2"]["outcome"] == "unreadable"
    assert any("spec2" in r and "policy4" in r for r in by_name["spec2"]["reasons"])
    assert not any("policy4" in r for r in by_name["retention"]["reasons"])


def test_a_campaign_that_is_to_stop_there_does_and_goes_on_later(hot: Hot) -> None:
    campaign = hot.phone.start(*SURVEY, TOKENS, "~cells.spec2", "session.on_throttle=stop")
    campaign.until_in_cell(1)
    hot.throttle()
    assert campaign.ended() == 1
    line = campaign.one_line()
    assert line.startswith("harness: error: cell retention does not count, throttled: ")
    assert [r["index"] for r in campaign.records] == [0]
    hot.cool()
    again = hot.phone.resume(campaign)
    again.ended_well()
    assert all(r["excursions"] == [] for r in again.records)
    hot.phone.is_as_before()


def test_a_cell_that_throttles_is_run_again_once_the_phone_has_cooled(hot: Hot) -> None:
    campaign = hot.phone.start(
        *MATCHED_PAIR,
        "session.on_throttle=repeat",
        *GATE,
    )
    campaign.until_in_cell(2, tokens=50)
    hot.throttle()
    (lost,) = campaign.until("it is ended", lambda: campaign.of("cell_repeated"))
    assert lost["index"] == 2
    assert re.search(
        r"throttled: (frequency cap of policy4|rise of the CPU temperature)", lost["reason"]
    )
    campaign.until_said("waiting at most")
    time.sleep(3.0)
    assert len(campaign.of("cell_started")) == 3, "the gate is shut"
    hot.cool()
    campaign.ended_well()
    assert [e["index"] for e in campaign.of("cell_started")] == [0, 1, 2, 2, 3]
    assert [r["excursions"] for r in campaign.records] == [[], [], [], []]
    gates = {g["what"]: g for g in campaign.records[2]["wait"]["gates"]}
    assert {g["outcome"] for g in gates.values()} == {"met"}
    assert gates["cap_pct"]["waited_s"] > 2.0
    assert gates["cpu_temp_c"]["waited_s"] > 2.0
    assert campaign.records[2]["wait"]["seconds"] > 2.0
    assert campaign.verdict["drift"]["verdict"] != "throttled"
    aborted = list(campaign.directory.glob("cells/02-spec2.aborted-*"))
    assert len(aborted) == 1
    assert (aborted[0] / "device.csv").stat().st_size
    assert campaign.out.count("does not count (throttled: ") == 1
    hot.phone.is_as_before()
