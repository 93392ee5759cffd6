"""Links over adb to made-up devices, as fixtures to be imported by name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psutil
import pytest
from adb_device import AdbDevice
from adb_device_parts import Adb, host
from adb_link_parts import clients, config
from launcher_parts import wait_for
from ports import free_port

from harness.targets import adb, adb_copy
from harness.targets.adb import AdbLink


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adb]:
    """An adb server of ours; links find it by the environment."""
    home = tmp_path_factory.mktemp("home")
    with host(home, free_port()) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(server.home))
        patch.setenv("ANDROID_ADB_SERVER_PORT", str(server.port))
        for name in ("ANDROID_SERIAL", "ADB_SERVER_SOCKET", "ADB_TRACE"):
            patch.delenv(name, raising=False)
        yield server


@pytest.fixture(scope="module")
def shared(server: Adb) -> Iterator[AdbDevice]:
    """A device that no test leaves otherwise than it was."""
    with AdbDevice() as device:
        yield device


@pytest.fixture
def link(shared: AdbDevice) -> Iterator[AdbLink]:
    with contextlib.closing(AdbLink(config(shared.serial))) as link:
        yield link


@pytest.fixture
def device(server: Adb) -> Iterator[AdbDevice]:
    """One to which things happen."""
    with AdbDevice(down_s=1.0) as device:
        yield device
        server.run("disconnect", device.serial)


@pytest.fixture
def shaky(device: AdbDevice) -> Iterator[AdbLink]:
    with contextlib.closing(AdbLink(config(device.serial))) as link:
        yield link


@pytest.fixture(autouse=True)
def watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks and asks soon, so that tests see it; whoever is slow to answer has time, as with us."""
    monkeypatch.setattr(adb, "QUIET_S", 0.3)
    monkeypatch.setattr(adb, "PROBE_S", 60.0)
    monkeypatch.setattr(adb, "AGAIN_S", 0.5)
    monkeypatch.setattr(adb_copy, "LOOK_S", 0.1)
    monkeypatch.setattr(adb_copy, "QUIET_S", 0.3)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, shaky: AdbLink) -> None:
    """For devices that are not going to answer."""
    monkeypatch.setattr(adb, "PROBE_S", 4.0)
    monkeypatch.setattr(adb_copy, "STALLED_S", 5.0)
    monkeypatch.setattr(shaky, "_patience_s", 5.0)


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    yield
    wait_for(lambda: clients(recursive=True) == [])
    wait_for(lambda: psutil.STATUS_ZOMBIE not in [c.status() for c in psutil.Process().children()])
