"""A phone that throttles during the third cell: caps fall, it heats up, and its engine is slowed.

The phone is made up (tests/adb_device), its slowness is real: a CPU quota over all its processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from adb_device import AdbDevice, why_unavailable
from adb_device_parts import free_port, host
from quota_parts import CpuQuota, QuotaUnavailableError, cpu_quota

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

REPO = Path(__file__).resolve().parents[2]
ZONE, POLICY = "thermal_zone2", "policy4"
COOL_C, HOT_C = 39.1, 78.5
FREE_KHZ, CAPPED_KHZ = 2_841_600, 1_420_800
THIRD = "cell 3 of 4 spec2: "
HELD_CORES = 0.15


@dataclass
class Phone:
    device: AdbDevice
    quota: CpuQuota
    environment: dict[str, str]

    def throttle(self) -> None:
        self.quota.hold(HELD_CORES)
        self.device.set_cap(POLICY, CAPPED_KHZ)
        self.device.set_temperature(ZONE, HOT_C)

    def recover(self) -> None:
        self.quota.lift()
        self.device.set_cap(POLICY, FREE_KHZ)
        self.device.set_temperature(ZONE, COOL_C)

    def run(
        self, runs: Path, *overrides: str, on_line: Callable[[str], None]
    ) -> tuple[int, list[str]]:
        """Exit code and all lines; `on_line` gets each as it comes."""
        words = ["+experiment=matched_pair", "target=adb", f"target.serial={self.device.serial}"]
        words += ["schedule.spacing_s=1", "schedule.probe_s=0.5", "tracking=off"]
        words += ["session.cpu_temp_max_c=70", f"runs_dir={runs}", *overrides]
        lines = []
        with subprocess.Popen(
            [sys.executable, "-m", "harness", *words],
            cwd=REPO,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line.rstrip("\n"))
                on_line(lines[-1])
        return process.returncode, lines


@pytest.fixture(scope="module")
def phone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Phone]:
    if reason := why_unavailable():
        pytest.skip(f"no made-up adb device: {reason}")
    base = tmp_path_factory.mktemp("throttle")
    (base / "home").mkdir()
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    try:
        with (
            cpu_quota() as quota,
            AdbDevice() as device,
            host(base / "home", free_port()) as adb,
        ):
            adb.connect(device.serial)
            device.enter_cgroup(quota.entrance)
            environment = {
                **os.environ,
                "HOME": str(adb.home),
                "ANDROID_ADB_SERVER_PORT": str(adb.port),
                "XDG_CACHE_HOME": cache,
            }
            yield Phone(device, quota, environment)
            device.leave_cgroup(quota.entrance)
    except QuotaUnavailableError as e:
        pytest.skip(str(e))


def records(runs: Path) -> dict[int, dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in runs.glob("*/cells/*/record.json")]
    return {record["index"]: record for record in found}


def verdict(runs: Path) -> dict[str, Any]:
    (path,) = runs.glob("*/verdict.json")
    return dict(json.loads(path.read_text()))


def test_a_throttle_during_the_third_cell_is_found_and_that_cell_unreadable(
    phone: Phone, tmp_path: Path
) -> None:
    def on_line(line: str) -> None:
        if line == f"{THIRD}running":
            time.sleep(2.5)  # it has loaded, and decoded some tokens
            phone.throttle()
        elif line.startswith(THIRD) and "tok/s, " in line and "tokens" in line:
            phone.recover()

    try:
        code, lines = phone.run(tmp_path, on_line=on_line)
    finally:
        phone.recover()
    assert code == 0, lines
    said = [line for line in lines if line.startswith(THIRD)]
    assert any("frequency cap of policy4 fell from 2.84 to 1.42 GHz" in line for line in said)
    assert any("CPU temperature (thermal_zone2.cpu-1-0): 78.5 °C" in line for line in said)

    cells = records(tmp_path)
    assert {e["what"] for e in cells[2]["excursions"]} == {"cap_drop", "cpu_temp_max"}
    assert all(cells[i]["excursions"] == [] for i in (0, 1, 3))
    found = verdict(tmp_path)
    assert found["drift"]["verdict"] == "throttled"
    assert any(POLICY in reason for reason in found["drift"]["reasons"])
    by_name = {v["candidate"]: v for v in found["verdicts"]}
    assert by_name["spec2"]["outcome"] == "unreadable"
    assert any("spec2" in r and POLICY in r for r in by_name["spec2"]["reasons"])
    assert not any(POLICY in r for r in by_name["retention"]["reasons"])


def test_a_throttled_cell_is_run_again_and_then_counts(phone: Phone, tmp_path: Path) -> None:
    throttled = []

    def on_line(line: str) -> None:
        if line == f"{THIRD}running" and not throttled:
            throttled.append(line)
            time.sleep(1.5)
            phone.throttle()
        elif "does not count" in line:
            phone.recover()

    try:
        code, lines = phone.run(tmp_path, "session.on_throttle=repeat", on_line=on_line)
    finally:
        phone.recover()
    assert code == 0, lines
    assert sum("does not count (throttled: " in line for line in lines) == 1
    assert [records(tmp_path)[i]["excursions"] for i in range(4)] == [[]] * 4
    (aborted,) = tmp_path.glob("*/cells/02-spec2.aborted-*")
    assert (aborted / "device.csv").stat().st_size
    assert verdict(tmp_path)["drift"]["verdict"] != "throttled"


def test_a_campaign_that_is_to_stop_there_does_and_goes_on_later(
    phone: Phone, tmp_path: Path
) -> None:
    def on_line(line: str) -> None:
        if line == f"{THIRD}running":
            time.sleep(1.5)
            phone.throttle()

    try:
        code, lines = phone.run(tmp_path, "session.on_throttle=stop", on_line=on_line)
    finally:
        phone.recover()
    assert code == 1, lines
    assert lines[-1].startswith("harness: error: cell spec2 does not count, throttled: ")
    assert sorted(records(tmp_path)) == [0, 1]
    (campaign,) = tmp_path.glob("*matched_pair*")
    code, lines = phone.run(
        tmp_path, "session.on_throttle=stop", f"resume={campaign.name}", on_line=lambda _line: None
    )
    assert code == 0, lines
    assert sorted(records(tmp_path)) == [0, 1, 2, 3]
    assert all(r["excursions"] == [] for r in records(tmp_path).values())
