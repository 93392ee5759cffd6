"""What can go wrong with a device, as the real adb client sees it on a made-up one."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from adb_device import AdbDevice, Settings, why_unavailable
from adb_device_parts import Adb
from launcher_parts import is_alive, wait_for

pytest_plugins = ["adb_fixtures"]
pytestmark = pytest.mark.skipif(
    why_unavailable() is not None, reason=f"no made-up adb device: {why_unavailable()}"
)
SIZE = 5_000_000


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "big"
    path.write_bytes(b"12345" * (SIZE // 5))
    return path


def said(done: subprocess.CompletedProcess[bytes]) -> str:
    return (done.stdout + done.stderr).decode()


def test_a_host_that_is_not_known_is_unauthorized_until_it_is_allowed(adb_server: Adb) -> None:
    with AdbDevice(Settings(auth="keys")) as device:
        assert "failed to authenticate" in adb_server.ok("connect", device.serial)
        adb_server.wait_for_state(device.serial, "unauthorized")
        adb = adb_server.on(device.serial)
        refused = adb.run("shell", "id")
        assert refused.returncode == 1
        assert "unauthorized" in said(refused)
        assert device.services() == []
        device.authorize()
        adb_server.wait_for_state(device.serial, "device")
        assert adb.shell("id -u") == "2000\n"
        # from now on the key is known: the host signs, and nobody is asked
        adb.connect_anew(device.serial)
        device.unauthorize()
        adb_server.wait_for_state(device.serial, "unauthorized")


def test_a_known_key_is_accepted_and_another_is_not(adb_server: Adb) -> None:
    key = (adb_server.home / ".android" / "adbkey.pub").read_text()
    with AdbDevice(Settings(auth="keys", keys=(key,))) as device:
        adb_server.connect(device.serial)
        other = key[:40] + ("B" if key[40] != "B" else "C") + key[41:]
        device.change(keys=(other,))
        device.drop_connections()
        adb_server.wait_for_state(device.serial, "unauthorized")


def test_a_device_that_does_not_answer_is_offline(own_device: AdbDevice, adb: Adb) -> None:
    own_device.go_offline()
    adb.wait_for_state(own_device.serial, "offline")
    refused = adb.run("shell", "id")
    assert refused.returncode == 1
    assert "offline" in said(refused)
    own_device.come_back()
    adb.connect_anew(own_device.serial)


def test_a_restart_ends_everything_and_changes_the_boot_id(own_device: AdbDevice, adb: Adb) -> None:
    before = adb.shell("cat /proc/sys/kernel/random/boot_id").strip()
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", before)
    adb.ok("shell", "echo kept > /data/local/tmp/file; sleep 1000 </dev/null >/dev/null 2>&1 &")
    adb.ok("shell", "cmd power set-fixed-performance-mode-enabled true; svc power stayon usb")
    pids = own_device.processes()
    adb.ok("reboot")
    wait_for(lambda: not any(is_alive(pid) for pid in pids))
    own_device.wait_until_up()
    adb.connect_anew(own_device.serial)
    after = adb.shell("cat /proc/sys/kernel/random/boot_id").strip()
    assert after not in ("", before)
    assert after == own_device.boot_id
    assert adb.shell("cat /data/local/tmp/file") == "kept\n"
    assert "sleep" not in own_device.names().values()
    assert float(adb.shell("cat /proc/uptime").split()[0]) < 120
    # the mode is forgotten, the setting is not
    assert not own_device.fixed_performance
    assert own_device.setting("stay_on_while_plugged_in") == "2"


def test_while_it_restarts_connections_are_refused(own_device: AdbDevice, adb: Adb) -> None:
    own_device.reboot(down_s=5)
    assert own_device.pid == 0
    adb.wait_for_state(own_device.serial, "offline")
    own_device.wait_until_up()
    adb.connect_anew(own_device.serial)


def test_a_restart_of_which_hosts_are_not_told(own_device: AdbDevice, adb: Adb) -> None:
    client = adb.start("shell", "cat")
    wait_for(lambda: "cat" in own_device.names().values())
    own_device.reboot(down_s=0, silent=True)
    own_device.wait_until_up()
    time.sleep(0.5)
    assert client.poll() is None
    assert adb.states()[own_device.serial] == "device"
    adb.connect_anew(own_device.serial)
    client.communicate(timeout=120)
    assert adb.shell("cat /proc/sys/kernel/random/boot_id").strip() == own_device.boot_id


def test_a_frozen_device_answers_when_it_thaws(own_device: AdbDevice, adb: Adb) -> None:
    loop = "while sleep 0.05; do echo x >> /data/local/tmp/f; done"
    adb.ok("shell", f"sh -c '{loop}' </dev/null >/dev/null 2>&1 &")
    grows = own_device.path("/data/local/tmp/f")
    wait_for(grows.exists)
    for everything in (False, True):
        with own_device.frozen(everything):
            client = adb.start("shell", "echo well")
            time.sleep(0.5)  # also until all that is stopped has stopped
            before = grows.stat().st_size
            if everything:
                time.sleep(0.5)
                assert grows.stat().st_size == before
            else:
                wait_for(lambda before=before: grows.stat().st_size > before)
            assert client.poll() is None
        assert client.communicate(timeout=120)[0] == b"well\n"


def test_a_reset_connection_ends_programs_that_wait_for_the_host(
    own_device: AdbDevice, adb: Adb
) -> None:
    client = adb.start("shell", "cat; echo over")
    adb.ok("shell", "sleep 1000 </dev/null >/dev/null 2>&1 &")
    wait_for(lambda: "cat" in own_device.names().values())
    own_device.drop_connections()
    # the client's exit code is 0, though nothing of the program's came
    assert client.communicate(timeout=120)[0] == b""
    wait_for(lambda: "cat" not in own_device.names().values())
    assert "sleep" in own_device.names().values()


def test_a_silent_connection_ends_nothing(own_device: AdbDevice, adb: Adb) -> None:
    client = adb.start("shell", "cat; echo over")
    wait_for(lambda: "cat" in own_device.names().values())
    own_device.drop_connections(silent=True)
    time.sleep(0.5)
    assert client.poll() is None
    assert adb.states()[own_device.serial] == "device"
    adb.connect_anew(own_device.serial)
    client.communicate(timeout=120)
    assert adb.shell("echo well") == "well\n"
    assert "cat" in own_device.names().values()


def test_a_client_that_is_killed_hangs_up_its_program(own_device: AdbDevice, adb: Adb) -> None:
    client = adb.start("shell", "exec sleep 1000")
    wait_for(lambda: "sleep" in own_device.names().values())
    client.kill()
    client.communicate()
    wait_for(lambda: "sleep" not in own_device.names().values())


def test_a_push_that_finds_no_space_says_so(own_device: AdbDevice, adb: Adb, big: Path) -> None:
    own_device.fail_sync_write(10)
    done = adb.run("push", big, "/data/local/tmp/big")
    assert done.returncode == 1
    assert "No space left on device" in said(done)
    assert adb.shell("ls /data/local/tmp") == ""
    adb.ok("push", big, "/data/local/tmp/big")


@pytest.mark.skipif(os.geteuid() != 0, reason="a file system of its own needs root")
def test_data_of_a_size_gets_full(adb_server: Adb, big: Path) -> None:
    with AdbDevice(data_bytes=16_000_000, down_s=0) as device:
        adb_server.connect(device.serial)
        adb = adb_server.on(device.serial)
        for name in ("one", "two"):
            adb.ok("push", big, f"/data/local/tmp/{name}")
        done = adb.run("push", big, "/data/local/tmp/three")
        assert done.returncode == 1
        assert "No space left on device" in said(done)
        assert "No space left on device" in adb.shell("cat /data/local/tmp/* > /data/local/tmp/x")
        device.reboot()
        device.wait_until_up()
        adb.connect_anew(device.serial)
        assert adb.shell("cd /data/local/tmp; stat -c %s one two").split() == [str(SIZE)] * 2
    assert not subprocess.run(
        ["losetup", "-j", device.layout.image], capture_output=True, check=True
    ).stdout


@pytest.mark.parametrize("how", ["reset", "close_stream"])
@pytest.mark.parametrize("direction", ["send", "recv"])
def test_a_transfer_is_cut(
    own_device: AdbDevice, adb: Adb, big: Path, direction: Any, how: Any
) -> None:
    adb.ok("push", big, "/data/local/tmp/there")
    own_device.cut_sync(direction, 1_000_000, how)
    words = {
        "send": ("push", big, "/data/local/tmp/big"),
        "recv": ("pull", "/data/local/tmp/there", big.with_name("back")),
    }[direction]
    assert adb.run(*words).returncode == 1
    adb.connect_anew(own_device.serial)
    adb.ok(*words)  # it happens once


def test_a_file_that_ends_early_is_a_success_to_adb(
    own_device: AdbDevice, adb: Adb, big: Path, tmp_path: Path
) -> None:
    adb.ok("push", big, "/data/local/tmp/there")
    own_device.cut_sync("recv", 1_000_000, "short")
    adb.ok("pull", "/data/local/tmp/there", tmp_path / "back")
    assert 1_000_000 <= (tmp_path / "back").stat().st_size < SIZE


def test_a_transfer_falls_silent(
    own_device: AdbDevice, adb: Adb, big: Path, tmp_path: Path
) -> None:
    own_device.cut_sync("send", 1_000_000, "silent")
    client = adb.start("push", big, "/data/local/tmp/big")
    with pytest.raises(subprocess.TimeoutExpired):
        client.wait(1)
    client.kill()
    client.communicate()


def test_answers_can_be_slow(own_device: AdbDevice, adb: Adb) -> None:
    own_device.change(delay_s=0.2)
    start = time.monotonic()
    assert adb.shell("echo well") == "well\n"
    assert time.monotonic() - start > 0.4


def test_what_is_no_setting_is_refused(own_device: AdbDevice) -> None:
    with pytest.raises(ValueError, match="no_such"):
        own_device.change(no_such=1)
    with pytest.raises(ValueError, match="no such cut"):
        own_device.cut_sync("recv", 1, "melt")  # type: ignore[arg-type]
