"""The launcher on a made-up phone, and on disks that do not want its result."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest
from launcher_parts import PYTHON, Run, command, table

from harness.device.launcher import read_result

pytestmark = pytest.mark.slow  # the first test builds the launcher


def test_the_state_of_a_made_up_device(launcher: Path, device: Path) -> None:
    argv = [launcher, "state", "--proc-root", device / "proc", "--sys-root", device / "sys"]
    state = json.loads(subprocess.run(argv, check=True, capture_output=True).stdout)
    assert state["mem_total_bytes"] == 8000 * 1024
    assert state["mem_available_bytes"] == 3000 * 1024
    assert state["swap_free_bytes"] == 500 * 1024
    assert state["load_1m"] == 2.5
    assert state["cpu_busy_share"] is None  # a clock that stands still
    assert state["cpufreq"][1] == {
        "policy": "policy4", "cpus": "4 5 6 7", "governor": "walt",
        "scaling_max_khz": 2800000, "scaling_cur_khz": 2200000, "cpuinfo_max_khz": 3000000,
    }  # fmt: skip
    assert [(zone["zone"], zone["type"], zone["temp_c"]) for zone in state["thermal"]] == [
        ("thermal_zone0", "cpu-milli", 45.678),
        ("thermal_zone1", "cpu-deci", 45.6),
        ("thermal_zone2", "cpu-whole", 45.0),
        ("thermal_zone3", "trip", 99.6),
    ]
    assert state["battery"] == {
        "temp_c": 31.4, "capacity_pct": 87, "status": "Discharging", "current_ua": -450000,
    }  # fmt: skip
    assert state["psi"] == {
        "cpu_some_avg10": 12.5,
        "memory_some_avg10": 0.25,
        "io_some_avg10": None,
    }


def test_what_a_device_does_not_have_is_null(launcher: Path, tmp_path: Path) -> None:
    argv = [launcher, "state", "--proc-root", tmp_path, "--sys-root", tmp_path]
    state = json.loads(subprocess.run(argv, check=True, capture_output=True).stdout)
    assert state.pop("unix_s") > 0
    assert state.pop("cpufreq") == []
    assert state.pop("thermal") == []
    assert set(state.values()) == {None}


def test_the_series_follows_the_device_while_the_program_runs(
    cell: Run, device: Path, tmp_path: Path
) -> None:
    heat = (
        "import sys, time; time.sleep(1)\n"
        "for name, value in zip(sys.argv[1::2], sys.argv[2::2]): open(name, 'w').write(value)\n"
        "time.sleep(2)"
    )
    sys_root = device / "sys"
    changes = [
        sys_root / "class/thermal/thermal_zone0/temp", "61234\n",
        sys_root / "class/thermal/thermal_zone1/temp", "149\n",
        sys_root / "devices/system/cpu/cpufreq/policy4/scaling_max_freq", "1400000\n",
    ]  # fmt: skip
    result = cell(
        PYTHON, "-c", heat, *changes, proc_root=device / "proc", sys_root=sys_root, device_ms=100
    )
    assert result["status"] == "ok"
    assert result["anon_peak_bytes"] > 0  # the process is a real one
    rows = table(tmp_path / "cell" / "device.csv")
    assert len(rows) >= 6
    first, last = rows[0], rows[-1]
    assert (first["thermal_zone0.cpu-milli.temp_c"], last["thermal_zone0.cpu-milli.temp_c"]) == (
        "45.68",
        "61.23",
    )
    assert last["thermal_zone1.cpu-deci.temp_c"] == "14.90"  # not 149: the sensor speaks in tenths
    assert (first["policy4.max_khz"], last["policy4.max_khz"]) == ("2800000", "1400000")
    assert first["mem_available_bytes"] == str(3000 * 1024)
    assert first["thermal_zone8.unreadable.temp_c"] == first["thermal_zone5.absurd.temp_c"] == ""
    assert result["exit"]["cpufreq"][1]["scaling_max_khz"] == 1400000
    as_read = read_result(tmp_path / "cell")  # by the host's half of the launcher
    assert as_read is not None
    assert as_read.entry is not None
    assert as_read.entry.cpufreq[0].cpus == "0 1 2 3"
    sensors = {sensor["type"]: sensor for sensor in result["sensors"]}
    assert sensors["cpu-milli"]["constant"] is False
    assert sensors["trip"]["constant"] is True
    assert sensors["unreadable"] == {
        "zone": "thermal_zone8", "type": "unreadable", "readings": 0,
        "min_c": None, "max_c": None, "constant": None,
    }  # fmt: skip


def refused(argv: list[Any], **popen: Any) -> str:
    done = subprocess.run(argv, capture_output=True, check=False, text=True, timeout=300, **popen)
    assert done.returncode == 5
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("moe-launcher: cannot ")
    return done.stderr


def test_a_directory_that_cannot_be_written_is_refused_before_the_start(
    launcher: Path, tmp_path: Path
) -> None:
    flag = tmp_path / "was started"
    (tmp_path / "file").write_text("")
    assert "Not a directory" in refused(
        command(launcher, tmp_path / "file" / "cell", {}, ["touch", flag])
    )
    full = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))}
    assert "File too large" in refused(
        command(launcher, tmp_path / "cell", {}, ["touch", flag]), **full
    )
    if os.geteuid() != 0:
        (tmp_path / "closed").mkdir(mode=0o500)
        assert "Permission denied" in refused(
            command(launcher, tmp_path / "closed", {}, ["touch", flag])
        )
    assert not flag.exists()


def test_a_program_that_fills_the_disk_does_not_prevent_the_result(
    launcher: Path, small_disk: Any, tmp_path: Path
) -> None:
    done = small_disk("1m", command(launcher, tmp_path / "disk", {}, ["cat", "/dev/zero"]))
    assert done.returncode == 0
    assert json.loads(done.stdout)["status"] == "failed"  # cat could not write on


def test_a_full_disk_is_refused_before_the_start(
    launcher: Path, small_disk: Any, tmp_path: Path
) -> None:
    flag = tmp_path / "was started"
    done = small_disk("16k", command(launcher, tmp_path / "disk", {}, ["touch", flag]))
    assert done.returncode == 5
    assert b"No space left on device" in done.stderr
    assert not flag.exists()
