"""Campaigns over adb through what happens to phones: nothing measured is lost, nothing is left."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from adb_campaigns import LONG, SURVEY, Campaign, Phone, phone
from adb_device import Settings, why_unavailable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        why_unavailable() is not None, reason=f"no made-up adb device: {why_unavailable()}"
    ),
]
STAY_ON = "stay_on_while_plugged_in"
FIXED = "target.fixed_performance=true"


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Phone]:
    with phone(tmp_path) as made:
        yield made


# --- what costs nothing --------------------------------------------------------------------------


def test_a_killed_server_costs_nothing_at_any_moment(tmp_path: Path) -> None:
    # small pieces that are slow to be acknowledged: a copy takes long enough to be met
    with phone(tmp_path, settings=Settings(max_payload=1 << 16)) as there:
        there.device.change(delay_s=0.02)
        campaign = there.start(*SURVEY, "cell.n_predict=512", "~cells.spec2")
        campaign.until("the engine is being sent", lambda: there.sent("moe-engine.part") > 1 << 20)
        there.server.run("kill-server")
        campaign.until_said("connected again")
        there.device.change(delay_s=0.0)

        campaign.until_in_cell(0, tokens=20)
        there.server.run("kill-server")
        campaign.until_said("connected again", times=2)

        campaign.until_in_cell(1)
        there.device.change(delay_s=0.05)
        fetched = "cells/01-retention/.*.part*"
        campaign.until("files are fetched", lambda: list(campaign.directory.glob(fetched)))
        there.server.run("kill-server")
        campaign.until_said("connected again", times=3)
        there.device.change(delay_s=0.0)
        campaign.ended_well()
        assert campaign.of("cell_repeated") == []
        assert all(r["excursions"] == [] for r in campaign.records)
        there.is_as_before()


def test_a_phone_that_is_away_for_less_than_the_lease_costs_nothing(there: Phone) -> None:
    """It forgets our key; then nobody is told of the end of the connection; then it is frozen."""
    silence = "the device has not answered for"
    # silence is noticed after 10 s, and on a busy machine it takes longer to be there again
    campaign = there.start(
        *SURVEY, f"cells.retention={LONG}", f"cells.spec2={LONG}", "target.lease_s=40"
    )
    campaign.until_in_cell(0)
    there.device.unauthorize()
    campaign.until_said("has not accepted this computer's key: unlock its screen, and accept")
    there.device.authorize()

    campaign.until_in_cell(1)
    breaks, silences = campaign.out.count("connected again"), campaign.out.count(silence)
    assert breaks >= 1
    there.device.drop_connections(silent=True)
    campaign.until_said("connected again", times=breaks + 1)
    assert campaign.out.count(silence) > silences

    campaign.until_in_cell(2)
    breaks, silences = campaign.out.count("connection lost"), campaign.out.count(silence)
    with there.device.frozen():
        campaign.until_said("connection lost", times=breaks + 1)
        time.sleep(2.0)
    campaign.ended_well()
    assert campaign.out.count(silence) > silences
    assert campaign.of("cell_repeated") == []
    there.until_left()  # what attends a connection that was cut without a word stays for a lease
    there.is_as_before()


# --- what costs a cell ---------------------------------------------------------------------------


def test_a_restart_and_an_end_of_the_lease_cost_the_cell_that_was_under_way(there: Phone) -> None:
    campaign = there.start(
        *(*SURVEY, FIXED, f"cells.retention={LONG}"), "schedule.spacing_s=4", "target.lease_s=6"
    )
    campaign.until_in_cell(1, tokens=20)
    assert there.is_prepared()
    there.device.reboot(down_s=2.0)
    campaign.until("the cell is lost", lambda: campaign.of("cell_repeated"))
    campaign.until_in_cell(1, attempt=2)
    assert there.is_prepared()  # a restart undoes fixed performance

    # it hears nothing, and ends the cell by itself
    there.device.go_offline()
    # which of the two depends on when adb's server last tried by itself
    words = ("is offline: it is connected and", "is the phone awake")
    campaign.until("what to do is said", lambda: any(w in campaign.out for w in words))
    there.until_left()
    there.device.come_back()
    campaign.until("the cell is lost again", lambda: len(campaign.of("cell_repeated")) == 2)

    campaign.until_waiting(2)
    there.device.reboot(down_s=1.0)
    campaign.until_in_cell(2)
    assert there.is_prepared()
    campaign.ended_well()
    lost = campaign.of("cell_repeated")
    assert [e["cell"] for e in lost] == ["retention"] * 2
    assert "the device restarted during the cell" in lost[0]["reason"]
    assert "restarted" not in lost[1]["reason"]
    assert campaign.out.count("restarted, and connected again") == 2
    assert "settings" not in campaign.out
    there.is_as_before()


# --- what ends the campaign ----------------------------------------------------------------------


def interrupted(campaign: Campaign) -> None:
    """By Ctrl-C, and at its end before the cell or the pause that it was in would have been."""
    campaign.signal(signal.SIGINT)
    assert campaign.ended() == 130
    assert [e["index"] for e in campaign.of("cell_finished")] == [0]
    assert "go on with" in campaign.one_line() or "resume with" in campaign.one_line()


def test_a_campaign_is_resumed_after_whatever_ended_it(there: Phone) -> None:
    """One campaign, whose second cell is met by one end after the other."""
    there.device.put_setting(STAY_ON, "0")
    campaign = there.start(
        *(*SURVEY, FIXED, f"cells.retention={LONG}", "~cells.spec2", "schedule.spacing_s=4"),
        *("target.lease_s=6", "target.reconnect_s=5"),
    )

    # Ctrl-C in a pause
    campaign.until_waiting(1)
    assert there.is_prepared()
    interrupted(campaign)
    assert [e["index"] for e in campaign.of("cell_started")] == [0]
    there.is_as_before()

    # in a cell
    campaign = there.resume(campaign)
    campaign.until_in_cell(1)
    interrupted(campaign)
    there.is_as_before()

    # while the phone is away
    campaign = there.resume(campaign)
    campaign.until_in_cell(1, attempt=2)
    there.device.freeze()
    campaign.until_said("connection lost")
    interrupted(campaign)
    there.device.thaw()
    assert "settings were not" in campaign.out
    there.until_left()
    there.until_no_client()
    assert there.is_prepared()  # nobody was there to put it back

    # the phone is gone for good
    campaign = there.resume(campaign)
    campaign.until_in_cell(1, attempt=3)
    there.device.go_offline()
    assert campaign.ended() == 1
    line = campaign.one_line()
    for words in ("no connection for ", "what was measured is kept", "resume with:"):
        assert words in line
    assert [r["cell"] for r in campaign.records] == ["baseline"]
    assert campaign.events[-1]["event"] == "campaign_stopped"
    there.until_no_client()
    there.until_left()
    there.device.come_back()
    there.server.connect_anew(there.device.serial)

    # the harness is killed
    campaign = there.resume(campaign)
    campaign.until_in_cell(1, attempt=4)
    campaign.signal(signal.SIGKILL)
    campaign.process.wait()
    there.until_no_client()
    there.until_left()
    (result,) = there.results(1)
    assert result["host_lost"], "it was the lease that ended it"
    assert there.is_prepared()

    # the next puts the phone back, also where it is another campaign
    there.start(*SURVEY, FIXED, "~cells.retention", "~cells.spec2").ended_well()
    assert there.device.setting(STAY_ON) == "0"
    there.has_its_settings()

    campaign = there.resume(campaign)
    campaign.until_in_cell(1, attempt=5)
    assert there.is_prepared()
    campaign.ended_well()
    assert [e["finished"] for e in campaign.of("campaign_resumed")] == [[0]] * 5
    assert there.device.setting(STAY_ON) == "0"
    there.is_as_before()
