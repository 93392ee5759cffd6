"""A link over a cable that is pulled without a word: everything ends in bounded time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ssh_parts import Network, Sshd

from harness.targets.link import LinkLost
from harness.targets.ssh import SshLink

pytestmark = pytest.mark.slow

BOUND_S = 16.0


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()


@pytest.fixture(scope="module")
def sshd(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    machine = Sshd(
        tmp_path_factory.mktemp("cut"),
        address=network.SERVER,
        port=22,
        prefix=network.server_prefix,
    )
    machine.start()
    yield machine
    machine.stop()


@pytest.fixture
def link(network: Network, sshd: Sshd) -> Iterator[SshLink]:
    with network.inside():
        link = SshLink(sshd.config())
        yield link
        link.close()
    network.slow(None)
    network.mend()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20) * 64)
    return path


def lost_after(
    network: Network, cut_in_s: float, attempt: Callable[[], object], *, swallow: bool = False
) -> float:
    """Seconds from the cut until `attempt` raised LinkLost."""
    cut_at: list[float] = []

    def cut() -> None:
        network.swallow() if swallow else network.cut()
        cut_at.append(time.monotonic())

    timer = threading.Timer(cut_in_s, cut)
    timer.start()
    try:
        with pytest.raises(LinkLost, match="no sign of life"):
            attempt()
        return time.monotonic() - cut_at[0]
    finally:
        timer.join()


def until_lost(channel: object) -> None:
    while True:
        channel.lines()  # type: ignore[attr-defined]
        time.sleep(0.1)


def closes_at_once(link: SshLink) -> None:
    started = time.monotonic()
    link.close()
    assert time.monotonic() - started < 1.0


@pytest.mark.parametrize("swallow", [False, True])
def test_during_a_call(network: Network, link: SshLink, swallow: bool) -> None:
    took = lost_after(
        network, 0.5, lambda: link.call(["sleep", "60"], timeout_s=100), swallow=swallow
    )
    assert took < BOUND_S
    closes_at_once(link)


def test_while_waiting_for_lines(network: Network, link: SshLink) -> None:
    channel = link.open(["cat"])
    channel.send(b"x")
    assert lost_after(network, 0.5, lambda: until_lost(channel)) < BOUND_S
    with pytest.raises(LinkLost):
        channel.send(b"y")
    channel.close()
    closes_at_once(link)


def test_while_sending_to_a_program(network: Network, link: SshLink) -> None:
    data = bytes(256 << 20)
    network.slow("80mbit")
    took = lost_after(network, 0.5, lambda: link.call(["cat"], timeout_s=100, stdin=data))
    assert took < BOUND_S
    closes_at_once(link)


def test_during_put_and_on_from_there(
    network: Network, link: SshLink, file: Path, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    network.slow("80mbit")
    assert lost_after(network, 1.0, lambda: link.put(file, str(there))) < BOUND_S
    closes_at_once(link)
    kept = there.stat().st_size
    assert 0 < kept < file.stat().st_size
    with pytest.raises(LinkLost):
        link.put(file, str(there))
    network.slow(None)
    network.mend()
    link.reconnect()
    told: list[int] = []
    link.put(file, str(there), lambda done, _: told.append(done))
    assert told[0] >= kept
    assert there.read_bytes() == file.read_bytes()


def test_during_get(network: Network, link: SshLink, file: Path, tmp_path: Path) -> None:
    network.slow("80mbit")
    assert lost_after(network, 1.0, lambda: link.get(str(file), tmp_path / "back")) < BOUND_S
    closes_at_once(link)


def test_while_nobody_uses_it(network: Network, link: SshLink) -> None:
    network.cut()
    time.sleep(12.0)
    started = time.monotonic()
    with pytest.raises(LinkLost, match="no sign of life"):
        link.call(["true"], timeout_s=30)
    assert time.monotonic() - started < 0.5


def test_closing_a_link_that_is_cut(network: Network, link: SshLink) -> None:
    channel = link.open(["cat"])
    network.cut()
    channel.close()
    closes_at_once(link)


@pytest.mark.parametrize("swallow", [False, True])
def test_reconnecting_while_it_is_cut(network: Network, sshd: Sshd, swallow: bool) -> None:
    with network.inside():
        link = SshLink(sshd.config(connect_timeout_s=3.0))
        network.swallow() if swallow else network.cut()
        started = time.monotonic()
        with pytest.raises(LinkLost, match="cannot connect"):
            link.reconnect()
        assert time.monotonic() - started < 5.0
        network.mend()
        link.reconnect()
        assert link.call(["echo", "x"], timeout_s=20).stdout == b"x\n"
        link.close()


def test_a_short_cut_is_no_end(network: Network, link: SshLink) -> None:
    channel = link.open(["cat"])
    network.cut()
    time.sleep(4.0)
    network.mend()
    channel.send(b"x")
    until = time.monotonic() + 10
    while not (lines := channel.lines()):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert lines == [b"x"]


def test_slow_is_not_dead(network: Network, link: SshLink, tmp_path: Path) -> None:
    """What is on the way takes longer than the other side may be silent."""
    network.slow("200kbit", queue_ms=1500)
    source = tmp_path / "source"
    source.write_bytes(os.urandom(400_000))
    link.put(source, str(tmp_path / "there"))
    assert (tmp_path / "there").read_bytes() == source.read_bytes()
    data = source.read_bytes()[:300_000]
    assert link.call(["wc", "-c"], timeout_s=200, stdin=data).stdout.strip() == b"300000"
    link.get(str(source), tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
