"""A link over a cable that is pulled without a word: everything ends in bounded time."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ssh_parts import Network, Sshd
from together import Body, Outcomes, Together

from harness.targets.link import LinkLost, OnBytes
from harness.targets.ssh import SshLink

pytestmark = pytest.mark.slow

# Ten seconds of silence, on a machine that is busy; what is cut off would go on for longer.
BOUND_S = 45.0
AT_ONCE_S = 8.0

together = Together()


@dataclass(frozen=True)
class Far:
    """A machine at the other end of a cable, a link to it, and a directory that both see."""

    network: Network
    sshd: Sshd
    link: SshLink
    root: Path

    def file(self) -> Path:
        path = self.root / "file"
        path.write_bytes(os.urandom(1 << 20) * 64)
        return path


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[Outcomes]:
    """Each has a machine and a cable of its own."""

    def run(body: Body, root: Path, stack: contextlib.ExitStack) -> None:
        network = Network()
        stack.callback(network.close)
        sshd = Sshd(root / "sshd", address=network.SERVER, port=22, prefix=network.server_prefix)
        stack.callback(sshd.stop)
        sshd.start()
        stack.enter_context(network.inside())
        link = SshLink(sshd.config())
        stack.callback(link.close)
        body(Far(network, sshd, link, root))

    with together.running(request, run) as outcomes:
        yield outcomes


def lost_after_some(network: Network, file: Path, put: Callable[[OnBytes], object]) -> float:
    """Seconds from the cut, in the middle of the file, until the copy raised LinkLost."""
    cut_at: list[float] = []

    def tell(done: int, total: int) -> None:
        if done > total // 8 and not cut_at:
            network.cut()
            cut_at.append(time.monotonic())

    with pytest.raises(LinkLost, match="no sign of life"):
        put(tell)
    assert file.stat().st_size > 0
    return time.monotonic() - cut_at[0]


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
    assert time.monotonic() - started < AT_ONCE_S


@together.each(False, True)
def test_during_a_call(far: Far, swallow: bool) -> None:
    took = lost_after(
        far.network, 0.5, lambda: far.link.call(["sleep", "60"], timeout_s=100), swallow=swallow
    )
    assert took < BOUND_S
    closes_at_once(far.link)


@together
def test_while_waiting_for_lines(far: Far) -> None:
    channel = far.link.open(["cat"])
    channel.send(b"x")
    assert lost_after(far.network, 0.5, lambda: until_lost(channel)) < BOUND_S
    with pytest.raises(LinkLost):
        channel.send(b"y")
    channel.close()
    closes_at_once(far.link)


@together
def test_while_sending_to_a_program(far: Far) -> None:
    data = bytes(256 << 20)
    far.network.slow("80mbit")
    took = lost_after(far.network, 0.5, lambda: far.link.call(["cat"], timeout_s=100, stdin=data))
    assert took < BOUND_S
    closes_at_once(far.link)


@together
def test_during_put_and_on_from_there(far: Far) -> None:
    file, there = far.file(), far.root / "there"
    far.network.slow("80mbit")
    took = lost_after_some(far.network, there, lambda tell: far.link.put(file, str(there), tell))
    assert took < BOUND_S
    closes_at_once(far.link)
    kept = there.stat().st_size
    assert 0 < kept < file.stat().st_size
    with pytest.raises(LinkLost):
        far.link.put(file, str(there))
    far.network.slow(None)
    far.network.mend()
    far.link.reconnect()
    told: list[int] = []
    far.link.put(file, str(there), lambda done, _: told.append(done))
    assert told[0] >= kept
    assert there.read_bytes() == file.read_bytes()


@together
def test_during_get(far: Far) -> None:
    file, back = far.file(), far.root / "back"
    far.network.slow("80mbit")
    assert lost_after(far.network, 1.0, lambda: far.link.get(str(file), back)) < BOUND_S
    closes_at_once(far.link)


@together
def test_while_nobody_uses_it(far: Far) -> None:
    far.network.cut()
    time.sleep(20.0)  # it is found out after ten
    started = time.monotonic()
    with pytest.raises(LinkLost, match="no sign of life"):
        far.link.call(["true"], timeout_s=30)
    assert time.monotonic() - started < AT_ONCE_S


@together
def test_closing_a_link_that_is_cut(far: Far) -> None:
    channel = far.link.open(["cat"])
    far.network.cut()
    channel.close()
    closes_at_once(far.link)


@together.each(False, True)
def test_reconnecting_while_it_is_cut(far: Far, swallow: bool) -> None:
    link = SshLink(far.sshd.config(connect_timeout_s=15.0))
    far.network.swallow() if swallow else far.network.cut()
    started = time.monotonic()
    with pytest.raises(LinkLost, match="cannot connect"):
        link.reconnect()
    assert time.monotonic() - started < BOUND_S
    far.network.mend()
    link.reconnect()
    assert link.call(["echo", "x"], timeout_s=20).stdout == b"x\n"
    link.close()


@together
def test_a_short_cut_is_no_end(far: Far) -> None:
    channel = far.link.open(["cat"])
    far.network.cut()
    time.sleep(2.0)
    far.network.mend()
    channel.send(b"x")
    until = time.monotonic() + 60
    while not (lines := channel.lines()):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert lines == [b"x"]


@together.each("put", "call", "get")
def test_slow_is_not_dead(far: Far, how: str) -> None:
    """What is on the way takes longer than the other side may be silent."""
    far.network.slow("200kbit", queue_ms=1500)
    source, there = far.root / "source", far.root / "there"
    source.write_bytes(os.urandom(400_000))
    if how == "call":
        data = source.read_bytes()[:300_000]
        assert far.link.call(["wc", "-c"], timeout_s=200, stdin=data).stdout.strip() == b"300000"
        return
    if how == "put":
        far.link.put(source, str(there))
    else:
        far.link.get(str(source), there)
    assert there.read_bytes() == source.read_bytes()
