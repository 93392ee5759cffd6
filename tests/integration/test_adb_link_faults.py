"""What may happen to a link over adb: server, device and connection end, and come back."""

# ruff: noqa: F811 - fixtures are imported, and are what arguments are named after
from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from adb_device import AdbDevice, why_unavailable
from adb_device_parts import Adb
from adb_link_fixtures import (  # noqa: F401
    device,
    impatient,
    link,
    nothing_is_left_running,
    server,
    shaky,
    shared,
    watchful,
)
from adb_link_parts import TMP, config, kill_server, later, reconnects
from launcher_parts import wait_for

from harness.errors import DeviceError
from harness.targets import adb
from harness.targets.adb import AdbLink
from harness.targets.link import Finished, LinkLost

pytestmark = pytest.mark.skipif(
    why_unavailable() is not None, reason=f"no made-up adb device: {why_unavailable()}"
)


BUSY_S = 40.0  # and what is lost would have gone on for longer


@pytest.mark.slow
@pytest.mark.parametrize("how", ["reset", "close_stream", "silent"])
@pytest.mark.usefixtures("impatient")
def test_a_copy_to_the_device_that_breaks_off_is_a_lost_link(
    device: AdbDevice, shaky: AdbLink, tmp_path: Path, how: str
) -> None:
    source = tmp_path / "f"
    source.write_bytes(os.urandom(40_000_000))
    device.cut_sync("send", 5_000_000, how)  # type: ignore[arg-type]
    began = time.monotonic()
    with pytest.raises(LinkLost):
        shaky.put(source, f"{TMP}/f")
    assert time.monotonic() - began < BUSY_S
    wait_for(lambda: reconnects(shaky))
    shaky.put(source, f"{TMP}/f")
    shaky.get(f"{TMP}/f", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["reset", "close_stream", "silent", "short"])
@pytest.mark.usefixtures("impatient")
def test_a_copy_from_the_device_that_breaks_off_is_a_lost_link(
    device: AdbDevice, shaky: AdbLink, tmp_path: Path, how: str
) -> None:
    source, back = tmp_path / "f", tmp_path / "back"
    source.write_bytes(os.urandom(40_000_000))
    shaky.put(source, f"{TMP}/f")
    device.cut_sync("recv", 5_000_000, how)  # type: ignore[arg-type]
    began = time.monotonic()
    with pytest.raises(LinkLost):
        shaky.get(f"{TMP}/f", back)
    assert time.monotonic() - began < BUSY_S
    assert list(tmp_path.iterdir()) == [source]
    wait_for(lambda: reconnects(shaky))
    shaky.get(f"{TMP}/f", back)
    assert back.read_bytes() == source.read_bytes()


def test_a_server_that_dies_is_started_again(
    server: Adb, device: AdbDevice, shaky: AdbLink
) -> None:
    channel = shaky.open(["cat"])
    timer = later(0.5, lambda: kill_server(server))
    began = time.monotonic()
    with pytest.raises(LinkLost):
        shaky.call(["sh", "-c", "sleep 300"], timeout_s=300)
    assert time.monotonic() - began < BUSY_S
    timer.join()
    with pytest.raises(LinkLost):
        wait_for(channel.lines)
    shaky.reconnect()
    assert shaky.call(["echo", "well"], timeout_s=90) == Finished(0, b"well\n", b"")
    assert reconnects(shaky)  # and nothing needs it


def test_a_call_that_has_to_start_the_server_knows_nothing_of_the_device(
    server: Adb, device: AdbDevice, shaky: AdbLink, tmp_path: Path
) -> None:
    for action in (
        lambda: shaky.call(["true"], timeout_s=90),
        lambda: shaky.get(f"{TMP}/f", tmp_path / "f"),
        lambda: shaky.put(Path("/etc/hostname"), f"{TMP}/f"),
    ):
        kill_server(server)
        # servers of newer clients take a second or two to start, and we are impatient here
        with pytest.raises(LinkLost, match=r"device '.*' not found|has not answered") as caught:
            action()
        assert "daemon" not in str(caught.value)
    shaky.reconnect()


def test_the_clients_news_are_not_the_programs_words(server: Adb, device: AdbDevice) -> None:
    kill_server(server)
    with contextlib.closing(AdbLink(config(device.serial))) as link:
        assert link.call(["sh", "-c", "echo a; echo b >&2"], timeout_s=90) == Finished(
            0, b"a\n", b"b\n"
        )


@pytest.mark.usefixtures("impatient")
def test_a_server_that_stands_still_is_a_lost_link(
    server: Adb, device: AdbDevice, shaky: AdbLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adb, "_SERVER_S", 1.0)
    (process,) = [
        p for p in psutil.process_iter(["cmdline"])
        if f"tcp:{server.port}" in (p.info["cmdline"] or []) and "fork-server" in p.info["cmdline"]
    ]  # fmt: skip
    process.suspend()
    try:
        with pytest.raises(LinkLost):
            shaky.call(["true"], timeout_s=300)
        with pytest.raises(LinkLost, match=r"adb's server has not answered for 1 s"):
            shaky.reconnect()
    finally:
        process.resume()
    monkeypatch.setattr(adb, "_SERVER_S", 60.0)
    shaky.reconnect()


def test_a_restart_is_survived(device: AdbDevice, shaky: AdbLink) -> None:
    channel = shaky.open(["cat"])
    timer = later(0.5, device.reboot)
    with pytest.raises(LinkLost):
        shaky.call(["sleep", "300"], timeout_s=300)
    timer.join()
    with pytest.raises(LinkLost):
        wait_for(channel.lines)
    wait_for(lambda: reconnects(shaky))
    assert shaky.call(["echo", "well"], timeout_s=90).stdout == b"well\n"


@pytest.mark.slow
@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.usefixtures("impatient")
def test_a_frozen_device_is_a_lost_link(
    device: AdbDevice, shaky: AdbLink, tmp_path: Path, everything: bool
) -> None:
    source = tmp_path / "f"
    source.write_bytes(os.urandom(20_000_000))
    shaky.put(source, f"{TMP}/f")
    actions: list[Callable[[], object]] = [
        lambda: shaky.call(["sleep", "300"], timeout_s=300),
        lambda: shaky.put(source, f"{TMP}/g"),
        lambda: shaky.get(f"{TMP}/f", tmp_path / "back"),
    ]

    def is_lost(action: Callable[[], object]) -> None:
        began = time.monotonic()
        with pytest.raises(LinkLost, match=rf"^{device.serial} has not answered for 4 s$"):
            action()
        assert time.monotonic() - began < BUSY_S

    with device.frozen(everything):
        with ThreadPoolExecutor() as at_once:
            list(at_once.map(is_lost, actions))
        with pytest.raises(LinkLost):
            shaky.reconnect()
    wait_for(lambda: reconnects(shaky))
    shaky.get(f"{TMP}/f", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["put", "get"])
@pytest.mark.usefixtures("impatient")
def test_a_device_that_freezes_during_a_copy_is_a_lost_link(
    device: AdbDevice, shaky: AdbLink, tmp_path: Path, direction: str
) -> None:
    source = tmp_path / "f"
    source.write_bytes(os.urandom(3_000_000))
    shaky.put(source, f"{TMP}/f")
    device.change(delay_s=0.1)  # a slow cable: the copy takes seconds
    later(1.0, device.freeze)
    source.write_bytes(os.urandom(60_000_000))
    try:
        with pytest.raises(LinkLost):
            if direction == "put":
                shaky.put(source, f"{TMP}/f")
            else:
                for _ in range(40):
                    shaky.get(f"{TMP}/f", tmp_path / "back")
    finally:
        device.thaw()


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_device_that_goes_offline_comes_back(device: AdbDevice, shaky: AdbLink) -> None:
    device.go_offline()
    with pytest.raises(LinkLost):
        shaky.call(["true"], timeout_s=90)
    with pytest.raises(LinkLost):
        shaky.reconnect()
    device.come_back()
    wait_for(lambda: reconnects(shaky))
    assert shaky.call(["echo", "well"], timeout_s=90).stdout == b"well\n"


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_device_that_forgets_our_key_says_what_to_do(device: AdbDevice, shaky: AdbLink) -> None:
    device.unauthorize()
    with pytest.raises(LinkLost):
        shaky.call(["true"], timeout_s=90)
    with pytest.raises(LinkLost, match=r"has not accepted this computer's key: unlock"):
        shaky.reconnect()  # that may end: it was authorized before
    with pytest.raises(DeviceError, match="has not accepted") as caught:
        AdbLink(config(device.serial, connect_timeout_s=5.0))
    assert not isinstance(caught.value, LinkLost)
    device.authorize()
    wait_for(lambda: reconnects(shaky))
    assert shaky.call(["echo", "well"], timeout_s=90).stdout == b"well\n"
