"""Which device a link over adb is to, and what it says of itself."""

# ruff: noqa: F811 - fixtures are imported, and are what arguments are named after
from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

import pytest
from adb_device import AdbDevice, Settings, why_unavailable
from adb_device_parts import Adb, host
from adb_link_fixtures import (  # noqa: F401
    device,
    link,
    nothing_is_left_running,
    server,
    shaky,
    shared,
    watchful,
)
from adb_link_parts import TMP, config
from ports import free_port

from harness.errors import DeviceError
from harness.targets import adb, android
from harness.targets.adb import AdbLink
from harness.targets.link import LinkLost

pytestmark = pytest.mark.skipif(
    why_unavailable() is not None, reason=f"no made-up adb device: {why_unavailable()}"
)


# --- which device --------------------------------------------------------------------------------


def test_the_only_device_needs_no_name_and_two_do(tmp_path: Path) -> None:
    with host(tmp_path, free_port()) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path))
        patch.setenv("ANDROID_ADB_SERVER_PORT", str(server.port))
        with pytest.raises(LinkLost, match="adb sees no device: connect one by USB"):
            AdbLink(config(None, connect_timeout_s=0.5))
        with AdbDevice() as one, AdbDevice(Settings(model="Pixel_U")) as two:
            server.connect(one.serial)
            with contextlib.closing(AdbLink(config(None))) as link:
                assert link.serial == one.serial
            server.connect(two.serial)
            with pytest.raises(DeviceError, match=r"2 devices are connected.*target\.serial=") as e:
                AdbLink(config(None))
            assert f"{one.serial} (Pixel T)" in str(e.value)
            assert f"{two.serial} (Pixel U)" in str(e.value)
            patch.setenv("ANDROID_SERIAL", two.serial)
            with contextlib.closing(AdbLink(config(None))) as link:
                assert link.serial == two.serial
            patch.setenv("ANDROID_SERIAL", "R58M999")
            with pytest.raises(LinkLost, match=r"no device R58M999.*ANDROID_SERIAL"):
                AdbLink(config(None, connect_timeout_s=0.5))
            patch.delenv("ANDROID_SERIAL")
            with pytest.raises(LinkLost, match=r"no device R58M123; connected: ") as e:
                AdbLink(config("R58M123", connect_timeout_s=0.5))
            assert two.serial in str(e.value)


def test_an_address_where_nothing_listens_is_said(server: Adb) -> None:
    serial = f"127.0.0.1:{free_port()}"
    with pytest.raises(LinkLost, match=rf"{serial}: cannot connect: Connection refused; nothing"):
        AdbLink(config(serial))
    with pytest.raises(LinkLost, match=r"nohost\.invalid:5555: cannot connect: .*name right"):
        AdbLink(config("nohost.invalid:5555"))


def test_an_old_device_is_refused_with_the_reason(server: Adb) -> None:
    features = tuple(f for f in Settings().features if f != "shell_v2")
    with AdbDevice(Settings(features=features)) as old:
        with pytest.raises(DeviceError, match=r"too old: .*exit codes .*shell_v2") as caught:
            AdbLink(config(old.serial))
        assert not isinstance(caught.value, LinkLost)
        server.run("disconnect", old.serial)


def test_no_client_is_said_with_where_to_get_it() -> None:
    with pytest.raises(DeviceError, match=r"no program '/no/adb' here; install it"):
        AdbLink(config(None, client="/no/adb"))


def test_a_server_of_another_version_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that says version 40 and does not let itself be ended."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(listener.getsockname()[1]))
        monkeypatch.setattr(adb, "_SERVER_S", 60.0)

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = listener.accept()
                    with peer:
                        size = int(peer.recv(4), 16)
                        asked = peer.recv(size)
                        peer.sendall(
                            b"OKAY0004" + b"0028" if asked == b"host:version" else b"FAIL0000"
                        )

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(LinkLost, match=r"two versions of adb .*40.*41.*target\.adb=PATH"):
            AdbLink(config(None))
        listener.shutdown(socket.SHUT_RDWR)


# --- settings ------------------------------------------------------------------------------------


def test_a_phones_settings_over_the_link(device: AdbDevice, shaky: AdbLink) -> None:
    shaky.call(["mkdir", "-p", f"{TMP}/moe-harness"], timeout_s=90)
    restore = android.prepare(
        shaky.call, f"{TMP}/moe-harness", fixed_performance=True, stay_awake=True
    )
    fixed, awake = restore.settings
    assert (fixed.setting, fixed.took) == ("fixed_performance", None)
    assert (awake.before, awake.now, awake.took) == ("null", "7", True)
    key = ["settings", "get", "global", "stay_on_while_plugged_in"]
    assert shaky.call(key, timeout_s=90).stdout == b"7\n"
    with contextlib.closing(AdbLink(config(device.serial))) as later_one:
        back = android.put_back(later_one.call, f"{TMP}/moe-harness")
    assert [o.took for o in back] == [None, True]
    assert shaky.call(key, timeout_s=90).stdout == b"null\n"


def test_battery_and_heat_over_the_link(device: AdbDevice, shaky: AdbLink) -> None:
    battery = android.read_battery(shaky.call)
    assert battery is not None
    assert (battery.level_pct, battery.temp_c, battery.plugged) == (81.0, 29.5, ())
    thermal = android.read_thermal(shaky.call)
    assert thermal is not None
    assert thermal.status == 0
    assert ("cpu-0-0", "cpu", 38.2) in [(t.name, t.kind, t.temp_c) for t in thermal.temperatures]
