"""Gates, sentinels and the inspection, with the real launcher and a made-up device."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from launcher_parts import PYTHON, Run

from harness.cachedir import sha256_file
from harness.collect import DEVICE
from harness.device.gates import await_gates
from harness.device.inspection import inspect
from harness.device.launcher import read_state
from harness.device.sentinel import LiveSentinel, excursions
from harness.device.suitability import Needs, findings, in_words, refuse
from harness.errors import DeviceError
from harness.records import Excursion
from harness.session_config import GateConfig, SessionConfig
from harness.targets.local import LocalTarget

pytestmark = pytest.mark.slow  # the first test builds the launcher

TARGET = LocalTarget("here")
LIMITS = SessionConfig(cpu_temp_max_c=60, cpu_temp_rise_c=None, cap_drop_pct=10)


@pytest.fixture
def elsewhere(launcher: Path, device: Path, tmp_path: Path) -> Path:
    """The launcher as it is on the made-up device."""
    path = tmp_path / "elsewhere"
    path.write_text(
        f'#!/bin/sh\n[ "$1" = digest ] && exec "{launcher}" "$@"\n'
        f'exec "{launcher}" "$@" --proc-root {device / "proc"} --sys-root {device / "sys"}\n'
    )
    path.chmod(0o755)
    return path


def test_a_gate_opens_when_the_device_has_cooled(elsewhere: Path, device: Path) -> None:
    hottest = device / "sys/class/thermal/thermal_zone0/temp"
    cap = device / "sys/devices/system/cpu/cpufreq/policy4/scaling_max_freq"
    hottest.write_text("71234\n")
    gate = GateConfig(cpu_temp_max_c=60, mem_available_min_mb=2, cap_min_pct=80)
    shown: list[float | None] = []

    def nap(seconds: float) -> None:
        del seconds  # the device cools while nobody looks
        hottest.write_text("49000\n" if len(shown) > 1 else "65000\n")
        cap.write_text("3000000\n")

    outcomes = await_gates(
        lambda: read_state(TARGET, elsewhere),
        gate,
        nap=nap,
        on_poll=lambda _left, readings: shown.append(readings[0].value),
    )
    assert [(o.what, o.outcome) for o in outcomes] == [
        ("cpu_temp_c", "met"),
        ("mem_available_bytes", "met"),
        ("cap_pct", "met"),
    ]
    assert shown == [71.234, 65]
    assert outcomes[0].value == 49
    assert outcomes[0].sensor == "thermal_zone0.cpu-milli"


def test_a_cell_that_throttles_is_seen_live_and_in_its_files(
    cell: Run, device: Path, tmp_path: Path
) -> None:
    sys_root = device / "sys"
    heat = (
        "import sys, time; time.sleep(1.5)\n"
        "for name, value in zip(sys.argv[1::2], sys.argv[2::2]): open(name, 'w').write(value)\n"
        "time.sleep(2)"
    )
    changes = [
        sys_root / "class/thermal/thermal_zone0/temp", "71234\n",
        sys_root / "devices/system/cpu/cpufreq/policy4/scaling_max_freq", "1400000\n",
    ]  # fmt: skip
    table = tmp_path / "cell" / DEVICE
    live: list[tuple[float, Excursion]] = []
    sentinel = LiveSentinel(TARGET, table, LIMITS)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            live.extend((time.monotonic(), e) for e in sentinel.look())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        roots = {"proc_root": device / "proc", "sys_root": sys_root}
        assert cell(PYTHON, "-c", heat, *changes, **roots)["status"] == "ok"
        ended = time.monotonic()
    finally:
        done.set()
        watcher.join()
    found = excursions(table.read_bytes(), LIMITS)
    assert found is not None
    assert [(e.what, e.sensor, e.start, e.value) for e in found] == [
        ("cpu_temp_max", "thermal_zone0.cpu-milli", 45.68, 71.23),
        ("cap_drop", "policy4", 2_800_000, 1_400_000),
    ]
    assert all(1400 < e.t_ms < 2400 for e in found)
    assert tuple(e for _, e in live) == found
    assert all(ended - at > 0.3 for at, _ in live)  # while it ran


def test_the_made_up_device_is_inspected(elsewhere: Path, tmp_path: Path) -> None:
    model = tmp_path / "model dir" / "m's $(x).gguf"
    model.parent.mkdir()
    model.write_bytes(b"weights")
    work = tmp_path / "work"
    work.mkdir()
    inspection = inspect(TARGET, elsewhere, work_dir=work, model_files=(model,), hash_model=True)
    assert inspection.model_sha256 == sha256_file(model)
    assert inspection.model.dir.path == str(model.parent)
    assert inspection.work.dir.writable is True
    assert inspection.clock_step_s == pytest.approx(0, abs=0.2)
    assert inspection.clock_off_s is not None
    assert abs(inspection.clock_off_s) <= inspection.clock_error_s + 0.01
    every = findings(inspection, Needs(write_bytes=1000, model_sha256=inspection.model_sha256))
    refuse(every)
    words = " | ".join(in_words(f) for f in every if f.level == "warning")
    assert "policy4 is capped at 2.80 GHz, 93% of its 3.00 GHz" in words
    assert list(model.parent.iterdir()) == [model]  # what was tried has been removed


def test_an_engine_at_work_is_found_by_name_and_refused(launcher: Path, tmp_path: Path) -> None:
    engine = tmp_path / "moe-engine"
    engine.symlink_to(sys.executable)
    with subprocess.Popen([str(engine), "-c", "while True: pass"]) as process:
        try:
            inspection = inspect(TARGET, launcher, work_dir=tmp_path, grace_s=0)
            with pytest.raises(DeviceError, match=r"is running and uses \d+% of a core; end it"):
                refuse(findings(inspection, Needs()))
            own = [e for e in inspection.engines if e.pid == process.pid]
            assert own
            assert own[0].cpu_share is not None
        finally:
            process.kill()


def test_a_program_that_is_no_launcher_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="is it a moe-launcher"):
        inspect(TARGET, Path("/bin/true"), work_dir=tmp_path)
    with pytest.raises(DeviceError, match="is it a moe-launcher"):
        read_state(TARGET, Path("/bin/true"))
