"""Campaigns over adb through what happens to phones: nothing measured is lost, nothing is left."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from adb_campaigns import SHORT, Phone, phone, wait_for
from adb_device import Settings, why_unavailable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        why_unavailable() is not None, reason=f"no made-up adb device: {why_unavailable()}"
    ),
]
# three cells, of a second or more each
THREE = (*SHORT, "~cells.spec2")


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Phone]:
    with phone(tmp_path) as made:
        yield made


# --- adb's server --------------------------------------------------------------------------------


def test_a_killed_server_costs_nothing_at_any_moment(tmp_path: Path) -> None:
    # small pieces that are slow to be acknowledged: a copy takes long enough to be met
    with phone(tmp_path, settings=Settings(max_payload=1 << 16)) as there:
        there.device.change(delay_s=0.02)
        campaign = there.start(*THREE)
        campaign.until("the engine is being sent", lambda: there.sent("moe-engine.part") > 1 << 20)
        there.server.run("kill-server")
        campaign.until_said("connected again")
        there.device.change(delay_s=0.0)

        campaign.until_in_cell(1, tokens=20)
        there.server.run("kill-server")
        campaign.until("the break is seen", lambda: campaign.out.count("connected again") == 2)

        campaign.until_in_cell(2)
        there.device.change(delay_s=0.05)
        fetched = "cells/02-sentinel/.*.part*"
        campaign.until("files are fetched", lambda: list(campaign.directory.glob(fetched)))
        there.server.run("kill-server")
        campaign.until("the break is seen", lambda: campaign.out.count("connected again") == 3)
        there.device.change(delay_s=0.0)
        campaign.ended_well()
        assert campaign.of("cell_repeated") == []
        assert all(r["excursions"] == [] for r in campaign.records)
        there.is_as_before()


# --- the phone goes away -------------------------------------------------------------------------


def test_a_restart_costs_the_cell_that_was_under_way(there: Phone) -> None:
    campaign = there.start(*THREE, "schedule.spacing_s=2")
    campaign.until_in_cell(1, tokens=20)
    assert there.is_prepared()
    there.device.reboot(down_s=2.0)
    campaign.until("the cell is lost", lambda: campaign.of("cell_repeated"))
    campaign.until_in_cell(1)
    assert there.is_prepared()  # a restart undoes fixed performance

    campaign.until_waiting(2)
    there.device.reboot(down_s=1.0)
    campaign.until_in_cell(2)
    assert there.is_prepared()
    campaign.ended_well()
    (lost,) = campaign.of("cell_repeated")
    assert lost["cell"] == "retention"
    assert "the device restarted during the cell" in lost["reason"]
    assert campaign.out.count("restarted, and connected again") == 2
    assert "settings" not in campaign.out
    there.is_as_before()


@pytest.mark.parametrize("how", ["silent", "frozen"])
def test_a_phone_that_says_nothing_for_a_while_costs_nothing(there: Phone, how: str) -> None:
    """Nobody is told of the end of such a connection."""
    campaign = there.start(*THREE, "cell.n_predict=1400", "schedule.probe_s=4")
    campaign.until_in_cell(1)
    began = time.monotonic()
    if how == "silent":
        there.device.drop_connections(silent=True)
        campaign.until_said("connected again")
        assert time.monotonic() - began < 20.0, "the lease was over"
    else:
        with there.device.frozen():
            campaign.until_said("connection lost")
            time.sleep(2.0)
    campaign.ended_well()
    assert campaign.of("cell_repeated") == []
    assert "the device has not answered for" in campaign.out
    there.is_as_before()


def test_a_phone_that_hears_nothing_ends_the_cell_which_is_run_again(there: Phone) -> None:
    campaign = there.start(*THREE, "target.lease_s=4", "schedule.probe_s=6")
    campaign.until_in_cell(1)
    there.device.go_offline()
    campaign.until_said("not yet: ")
    # which of the two depends on when adb's server last tried by itself
    assert "is offline: it is connected and" in campaign.out or "is the phone awake" in campaign.out
    there.until_left(20)
    there.device.come_back()
    campaign.until("it goes on", lambda: campaign.of("cell_repeated"))
    campaign.ended_well()
    (lost,) = campaign.of("cell_repeated")
    assert lost["index"] == 1
    there.is_as_before()


def test_a_phone_that_forgets_our_key_is_waited_for(tmp_path: Path) -> None:
    with phone(tmp_path) as there:
        campaign = there.start(*THREE)
        campaign.until_in_cell(1)
        there.device.unauthorize()
        campaign.until_said("has not accepted this computer's key: unlock its screen, and accept")
        there.device.authorize()
        campaign.ended_well()
        there.is_as_before()


def test_a_phone_that_is_gone_for_good_ends_the_campaign_which_can_be_resumed(
    there: Phone,
) -> None:
    campaign = there.start(*THREE, "target.reconnect_s=3", "target.lease_s=4")
    campaign.until_in_cell(1)
    there.device.go_offline()
    assert campaign.ended(60) == 1
    line = campaign.one_line()
    for words in ("no connection for ", "what was measured is kept", "resume with:"):
        assert words in line
    assert [r["cell"] for r in campaign.records] == ["baseline"]
    assert campaign.events[-1]["event"] == "campaign_stopped"
    assert there.clients() == []
    there.until_left(20)

    there.device.come_back()
    there.server.connect_anew(there.device.serial)
    again = there.resume(campaign)
    again.ended_well()
    assert [e["finished"] for e in again.of("campaign_resumed")] == [[0]]
    there.is_as_before()


# --- the harness goes away -----------------------------------------------------------------------


def test_what_a_killed_harness_leaves_ends_with_the_lease_and_is_put_back_by_the_next(
    there: Phone,
) -> None:
    campaign = there.start(*THREE, "target.lease_s=4", "schedule.probe_s=8")
    campaign.until_in_cell(1)
    campaign.signal(signal.SIGKILL)
    killed = time.monotonic()
    campaign.process.wait()
    wait_for("no client is left", lambda: there.clients() == [], 2)
    assert there.processes() != {}
    there.until_left(4 + 10)
    assert time.monotonic() - killed > 2.0  # it was the lease that ended them
    assert there.is_prepared()  # nobody was there to put it back

    again = there.resume(campaign)
    again.until_in_cell(1)
    assert there.is_prepared()
    again.ended_well()
    (resumed,) = again.of("campaign_resumed")
    assert resumed["finished"] == [0]
    there.is_as_before()


def test_another_campaign_puts_back_what_a_killed_one_left(there: Phone) -> None:
    there.device.put_setting("stay_on_while_plugged_in", "0")
    killed = there.start(*THREE, "target.lease_s=3")
    killed.until_in_cell(0)
    killed.signal(signal.SIGKILL)
    there.until_left(3 + 10)
    assert there.is_prepared()
    there.start(*THREE, "cell.n_predict=192").ended_well()
    assert there.device.setting("stay_on_while_plugged_in") == "0"
    there.has_its_settings()


@pytest.mark.parametrize("where", ["cell", "pause", "away"])
def test_an_interrupted_campaign_leaves_the_phone_as_it_was(there: Phone, where: str) -> None:
    campaign = there.start(*THREE, "schedule.spacing_s=5", "target.lease_s=4")
    if where == "pause":
        campaign.until_waiting(1)
    else:
        campaign.until_in_cell(1)
    if where == "away":
        there.device.freeze()
        campaign.until_said("connection lost")
    campaign.signal(signal.SIGINT)
    asked = time.monotonic()
    assert campaign.ended(60) == 130
    assert time.monotonic() - asked < 10.0
    assert "go on with" in campaign.one_line() or "resume with" in campaign.one_line()
    if where == "away":
        there.device.thaw()
        assert "settings were not" in campaign.out
        there.until_left(4 + 10)
        assert there.clients() == []
    else:
        there.is_as_before()
    there.resume(campaign).ended_well()
    there.is_as_before()
