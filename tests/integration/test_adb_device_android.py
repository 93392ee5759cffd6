"""What is Android's on the made-up device: its small programs, sensors; and our programs on it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from adb_device import AdbDevice, has_fuse, why_unavailable
from adb_device_parts import Adb
from engine_parts import engine
from quota_parts import QuotaUnavailableError, cpu_quota

from harness.build import ensure_engine
from harness.models.resolve import DATA, REFERENCE

pytest_plugins = ["adb_fixtures"]
pytestmark = pytest.mark.skipif(
    why_unavailable() is not None, reason=f"no made-up adb device: {why_unavailable()}"
)
TMP = "/data/local/tmp"


def test_properties_of_a_user_build(own_device: AdbDevice, adb: Adb) -> None:
    assert adb.shell("getprop ro.build.version.sdk; getprop absent fallback") == "34\nfallback\n"
    assert "[ro.build.type]: [user]\n" in adb.shell("getprop")
    assert adb.shell("setprop debug.a 'b c'; getprop debug.a") == "b c\n"
    assert adb.run("shell", "setprop ro.secure 0").returncode == 1


def test_battery_as_dumpsys_says_it(own_device: AdbDevice, adb: Adb) -> None:
    own_device.set_battery(celsius=36.5, capacity_pct=55, status="Charging", current_ua=900_000)
    own_device.set_plugged("usb", True)
    lines = adb.shell("dumpsys battery").splitlines()
    assert lines[0] == "Current Battery Service state:"
    said = dict(line.strip().split(": ") for line in lines[1:])
    wanted = {"USB powered": "true", "AC powered": "false", "level": "55", "scale": "100"}
    assert wanted.items() <= said.items()
    assert (said["status"], said["temperature"]) == ("2", "365")


def test_temperatures_as_dumpsys_says_them(own_device: AdbDevice, adb: Adb) -> None:
    own_device.set_temperature("thermal_zone1", 71.25)
    own_device.set_thermal_status(2)
    text = adb.shell("dumpsys thermalservice")
    assert "Thermal Status: 2\n" in text
    found = re.findall(r"Temperature\{mValue=([\d.]+), mType=(\d), mName=([\w-]+), mStatus=2", text)
    assert ("71.2", "0", "cpu-0-1") in found
    own_device.remove_service("thermalservice")
    assert "Can't find service" in adb.shell("dumpsys thermalservice")


def test_fixed_performance_mode(own_device: AdbDevice, adb: Adb) -> None:
    command = "cmd power set-fixed-performance-mode-enabled"
    adb.ok("shell", f"{command} true")
    assert own_device.fixed_performance
    adb.ok("shell", f"{command} false")
    assert not own_device.fixed_performance
    for how in ("unknown", "no_hal"):
        own_device.support_fixed_performance(how)  # type: ignore[arg-type]
        assert adb.run("shell", f"{command} true").returncode == 255
        assert not own_device.fixed_performance


def test_stay_awake(own_device: AdbDevice, adb: Adb) -> None:
    key = "stay_on_while_plugged_in"
    assert adb.shell(f"settings get global {key}") == "null\n"
    assert own_device.setting(key) is None
    adb.ok("shell", "svc power stayon true")
    assert own_device.setting(key) == "15"
    adb.ok("shell", f"settings put global {key} 3")
    assert adb.shell(f"settings get global {key}") == "3\n"
    own_device.put_setting(key, "0")
    assert adb.shell(f"settings get global {key}; settings delete global {key}") == (
        "0\nDeleted 1 rows\n"
    )


@pytest.fixture(scope="module")
def launcher_on(adb_server: Adb) -> Iterator[tuple[AdbDevice, Adb]]:
    """A device that has our programs and the reference model."""
    with AdbDevice() as device:
        adb_server.connect(device.serial)
        adb = adb_server.on(device.serial)
        program = engine()
        launcher = ensure_engine(binary=program).launcher
        adb.ok("push", program, launcher, DATA / REFERENCE, TMP)
        yield device, adb


@pytest.mark.slow
def test_the_launcher_sees_the_made_up_sensors(launcher_on: tuple[AdbDevice, Adb]) -> None:
    device, adb = launcher_on
    device.set_temperature("thermal_zone2", 88.5)
    device.set_cap("policy4", 1_401_600)
    device.set_battery(celsius=33.1, capacity_pct=70, status="Full", current_ua=0)
    state = json.loads(adb.ok("shell", f"{TMP}/moe-launcher state"))
    temperatures = {zone["type"]: zone["temp_c"] for zone in state["thermal"]}
    assert temperatures["cpu-1-0"] == 88.5
    assert temperatures["soc-trip"] == 99.6
    caps = {policy["policy"]: policy["scaling_max_khz"] for policy in state["cpufreq"]}
    assert caps == {"policy0": 1_804_800, "policy4": 1_401_600}
    assert state["battery"] == {
        "temp_c": 33.1,
        "capacity_pct": 70,
        "status": "Full",
        "current_ua": 0,
    }


@pytest.mark.slow
def test_the_launcher_finds_direct_reads_and_fuse(launcher_on: tuple[AdbDevice, Adb]) -> None:
    device, adb = launcher_on

    def inspect(directory: str) -> Any:
        return json.loads(adb.ok("shell", f"{TMP}/moe-launcher inspect --dir {directory}"))

    found = inspect(TMP)
    assert found["boot_id"] == device.boot_id
    assert found["dir"]["fuse"] is False
    assert found["direct_io"]["works"] is True
    assert found["user"] == 2000
    if has_fuse():
        assert inspect("/sdcard")["dir"]["fuse"] is True


def run_engine(adb: Adb, tmp_path: Path, tokens: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the launcher found, and the engine's summary."""
    engine_words = (
        f"./moe-engine -m {REFERENCE} -p 'Once upon a time' -n {tokens} -t 1 --no-eog "
        "--moe-stream --cache-mb 12 --telemetry out/telemetry.jsonl"
    )
    launcher_words = f"./moe-launcher run --dir out --probe-s 0.2 --probe-file {REFERENCE}"
    done = adb.run("shell", f"cd {TMP} && {launcher_words} -- {engine_words}", timeout_s=900)
    assert done.returncode == 0, done
    for name in ("result.json", "telemetry.jsonl"):
        adb.ok("pull", f"{TMP}/out/{name}", tmp_path / name)
    result = json.loads((tmp_path / "result.json").read_bytes())
    records = map(json.loads, (tmp_path / "telemetry.jsonl").read_text().splitlines())
    return result, next(r for r in records if r["type"] == "summary")


@pytest.mark.slow
def test_the_engine_runs_on_it(launcher_on: tuple[AdbDevice, Adb], tmp_path: Path) -> None:
    result, summary = run_engine(launcher_on[1], tmp_path, 64)
    assert result["status"] == "ok"
    assert result["probe"]["after"]["read_direct"] is True
    assert {sensor["type"] for sensor in result["sensors"]} >= {"cpu-0-0", "soc-trip"}
    assert summary["total"]["read_bytes"] > 0


@pytest.mark.slow
def test_the_engine_is_slowed_by_a_quota(
    launcher_on: tuple[AdbDevice, Adb], tmp_path: Path
) -> None:
    device, adb = launcher_on
    try:
        with cpu_quota() as quota:
            free = device.processes()
            device.enter_cgroup(quota.entrance)
            assert set(free) <= set(map(int, quota.entrance.read_text().split()))
            run_engine(adb, tmp_path, 16)
            assert quota.held_back_s == 0
            quota.hold(0.04)  # less than neighbours leave it
            result, _ = run_engine(adb, tmp_path, 32)
            assert quota.held_back_s > 0
            assert result["user_s"] + result["system_s"] < 0.2 * result["wall_s"]
            quota.lift()
            device.leave_cgroup(quota.entrance)
    except QuotaUnavailableError as e:
        pytest.skip(str(e))
