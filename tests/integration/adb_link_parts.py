"""What the tests of links over adb share."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import psutil
from adb_device_parts import Adb
from launcher_parts import wait_for

from harness.target_config import AdbConfig
from harness.targets.adb import AdbLink
from harness.targets.link import Channel, LinkLost

TMP = "/data/local/tmp"
ODD_NAME = "a b'c\"d\n$(touch hit)`id` é漢;&|*?[x]~#\\\udcff"


def config(serial: str | None, client: str = "adb", connect_timeout_s: float = 30.0) -> AdbConfig:
    return AdbConfig(
        kind="adb",
        serial=serial,
        name=None,
        adb=client,
        dir=f"{TMP}/moe-harness",
        device_lock=None,
        fixed_performance=True,
        stay_awake=True,
        connect_timeout_s=connect_timeout_s,
        lease_s=20.0,
        reconnect_s=300.0,
    )


def clients(*, recursive: bool = False) -> list[psutil.Process]:
    """adb's, of this process; they come and go while one looks."""
    found = []
    for child in psutil.Process().children(recursive=recursive):
        with contextlib.suppress(psutil.Error):
            if "-s" in child.cmdline():
                found.append(child)
    return found


def later(seconds: float, action: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


def kill_server(server: Adb) -> None:
    """As a crash would, not by its own command."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if f"tcp:{server.port}" in words and "fork-server" in words:
            process.kill()


def reconnects(link: AdbLink) -> bool:
    try:
        link.reconnect()
    except LinkLost:
        return False
    return True


def taken(channel: Channel, count: int) -> list[bytes]:
    found: list[bytes] = []

    def enough() -> bool:
        found.extend(channel.lines())
        return len(found) >= count

    wait_for(enough)
    return found
