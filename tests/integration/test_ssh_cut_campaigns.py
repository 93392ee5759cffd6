"""Campaigns over a cable that is pulled without a word: in a cell, a transfer, a fetch."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_campaigns import ENDING_S, Bench, wait_for
from ssh_parts import Network, Sshd
from together import Body, Outcomes, Together

from harness.cachedir import sha256_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

SLOW = {"baseline": {}, "half": {"token_ms": 1000}, "off": {}}


together = Together()


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, launcher: Path) -> Iterator[Outcomes]:
    """Each at its own cable, with its own device at the other end."""

    def run(body: Body, root: Path, stack: contextlib.ExitStack) -> None:
        network = Network()
        stack.callback(network.close)
        sshd = Sshd(root / "far", address=network.SERVER, port=22, prefix=network.server_prefix)
        stack.callback(sshd.stop)
        sshd.start()
        far = Bench(root / "bench", sshd, launcher, network.client_prefix)
        stack.callback(far.close)
        body(far, network)

    with together.running(request, run) as outcomes:
        yield outcomes


@together
def test_in_a_cell(far: Bench, network: Network) -> None:
    campaign = far.start(far.model(), arms=SLOW, n_predict=12, lease_s=60.0)
    far.until("cell_started", 1)
    time.sleep(1.0)
    network.cut()
    wait_for(lambda: "connection lost" in campaign.said)
    time.sleep(1.0)
    network.mend()
    campaign.ends(0)
    far.check_whole(n_predict=12)
    assert far.starts() == {0: 1, 1: 1, 2: 1, 3: 1}
    far.check_left_clean()


@together
def test_in_a_transfer_which_goes_on_from_there(far: Bench, network: Network) -> None:
    size = 40 << 20
    model = far.model(size)
    network.slow("20mbit")
    campaign = far.start(model, lease_s=60.0)
    there = wait_for(lambda: list(far.device.rglob(f"{model.name}.part")))[0]
    wait_for(lambda: there.stat().st_size > size // 4)
    network.cut()
    wait_for(lambda: "connection lost" in campaign.said)
    kept = there.stat().st_size
    network.mend()
    campaign.ends(0)
    _, _, after = campaign.said.partition("connected again")
    began_at = int(re.search(rf"sent {model.name} (\d+) {size}", after).group(1))  # type: ignore[union-attr]
    assert began_at >= kept >= size // 4
    (place,) = far.device.rglob(model.name)
    assert sha256_file(place) == sha256_file(model)
    far.check_whole()
    far.check_left_clean()
    print(f"{began_at / 2**20:.1f} of {size / 2**20:.0f} MiB were not sent again")


@together
def test_in_the_fetch_of_results(far: Bench, network: Network) -> None:
    n = 3000
    arms = {name: {"token_ms": 0} for name in ("baseline", "half", "off")}
    campaign = far.start(far.model(), arms=arms, n_predict=n, lease_s=60.0)
    far.until("cell_started", 1)
    network.slow("400kbit")
    wait_for(lambda: list(far.campaign().glob("cells/01-half/.*.part")))
    network.cut()
    wait_for(lambda: "connection lost" in campaign.said)
    network.slow(None)
    network.mend()
    campaign.ends(0)
    far.check_whole(n_predict=n)
    assert far.starts() == {0: 1, 1: 1, 2: 1, 3: 1}
    far.check_left_clean()


@together
def test_for_longer_than_anyone_waits(far: Bench, network: Network) -> None:
    model = far.model()
    campaign = far.start(model, arms=SLOW, n_predict=20, lease_s=10.0, reconnect_s=8.0)
    far.until("cell_started", 1)
    time.sleep(1.0)
    network.cut()
    took = campaign.ends(1)
    error = campaign.error()
    assert "no connection for" in error
    assert "what was measured is kept" in error
    assert far.events("campaign_stopped")[-1]["reason"] == error
    print(f"given up {took:.1f} s after the cut, with reconnect_s=8: {error}")
    far.until_clean(10.0 + ENDING_S)
    network.mend()
    far.start(model, arms=SLOW, n_predict=20, lease_s=60.0).ends(0)
    far.check_whole(n_predict=20)
    assert far.starts() == {0: 1, 1: 2, 2: 1, 3: 1}
    far.check_left_clean()


@together.each("before it is noticed", "while it is away")
def test_ctrl_c_while_the_device_is_away(far: Bench, network: Network, moment: str) -> None:
    model = far.model()
    campaign = far.start(model, arms=SLOW, n_predict=20, lease_s=10.0)
    far.until("cell_started", 1)
    time.sleep(0.5)
    network.cut()
    if moment == "while it is away":
        wait_for(lambda: "connection lost" in campaign.said)
        time.sleep(1.5)
    campaign.interrupt()
    took = campaign.ends(130)
    print(f"ended {took:.1f} s after Ctrl-C {moment}: {campaign.error()}")
    assert took < 60.0  # it would try again for five minutes
    assert far.journal()[-1].data["reason"] == "SIGINT"
    far.until_clean(10.0 + ENDING_S)
    network.mend()
    far.start(model, arms=SLOW, n_predict=20, lease_s=60.0).ends(0)
    far.check_whole(n_predict=20)
    far.check_left_clean()


@together
def test_ctrl_c_in_a_transfer(far: Bench, network: Network) -> None:
    size = 40 << 20
    model = far.model(size)
    network.slow("20mbit")
    campaign = far.start(model, lease_s=300.0)
    there = wait_for(lambda: list(far.device.rglob(f"{model.name}.part")))[0]
    wait_for(lambda: there.stat().st_size > size // 4)
    campaign.interrupt()
    took = campaign.ends(130)
    assert list(far.device.rglob(model.name)) == []  # not all of it was sent first
    print(f"ended {took:.1f} s after Ctrl-C in a transfer")
    far.until_clean(ENDING_S)  # the lease would go on for longer
    wait_for(far.is_free)
    kept = there.stat().st_size
    network.slow(None)
    again = far.start(model)
    again.ends(0)
    began_at = int(re.search(rf"sent {model.name} (\d+) {size}", again.said).group(1))  # type: ignore[union-attr]
    assert began_at >= kept
    far.check_whole()
    far.check_left_clean()
