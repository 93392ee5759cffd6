"""Fixtures for tests against made-up Android devices: `pytest_plugins = ["adb_fixtures"]`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from adb_device import AdbDevice
from adb_device_parts import Adb, host
from ports import free_port


@pytest.fixture(scope="module")
def adb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adb]:
    """One adb server of one's own; its devices come and go."""
    with host(tmp_path_factory.mktemp("home"), free_port()) as adb:
        yield adb


@pytest.fixture(scope="module")
def shared_device(adb_server: Adb) -> Iterator[AdbDevice]:
    """A device that no test leaves otherwise than it was."""
    with AdbDevice() as device:
        adb_server.connect(device.serial)
        yield device


@pytest.fixture
def own_device(adb_server: Adb) -> Iterator[AdbDevice]:
    with AdbDevice(down_s=0.3) as device:
        adb_server.connect(device.serial)
        yield device
        adb_server.run("disconnect", device.serial)


@pytest.fixture
def adb(adb_server: Adb, request: pytest.FixtureRequest) -> Adb:
    """The client on the test's own device if it asked for one, or on the shared one."""
    name = "own_device" if "own_device" in request.fixturenames else "shared_device"
    return adb_server.on(request.getfixturevalue(name).serial)
