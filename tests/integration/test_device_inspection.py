"""Gates, sentinels and the inspection, with the real launcher and a made-up device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from bisect import bisect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cell_parts import fake_build, make_arm, make_plan
from launcher_parts import PYTHON, Run
from launcher_parts import table as rows_of
from loop_link import LoopLink

from harness.cachedir import sha256_file
from harness.collect import DEVICE
from harness.configure import check, compose
from harness.device.claim import owner_of
from harness.device.deploy import Deployed
from harness.device.environment import Environment, describe_environment
from harness.device.gates import await_gates
from harness.device.inspection import OtherEngine, inspect
from harness.device.launcher import read_state
from harness.device.readiness import Readiness, check_device
from harness.device.sentinel import LiveSentinel, excursions
from harness.device.suitability import Needs, findings, in_words, refuse
from harness.errors import DeviceError, UsageError
from harness.readings import Excursion
from harness.records import TargetId
from harness.session_config import GateConfig, SessionConfig
from harness.targets.local import LocalTarget
from harness.targets.remote import RemoteTarget
from harness.targets.target import Target

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
    seen = tmp_path / "seen"
    heat = (
        "import os, sys, time; time.sleep(1.5)\n"
        "for name, value in zip(sys.argv[2::2], sys.argv[3::2]): open(name, 'w').write(value)\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(.05)"  # and goes on until it was seen
    )
    changes: list[Any] = [
        sys_root / "class/thermal/thermal_zone0/temp", "71234\n",
        sys_root / "devices/system/cpu/cpufreq/policy4/scaling_max_freq", "1400000\n",
    ]  # fmt: skip
    table = tmp_path / "cell" / DEVICE
    live: list[Excursion] = []
    sentinel = LiveSentinel(TARGET, table, LIMITS)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            live.extend(sentinel.look())
            if len(live) >= 2:
                seen.touch()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        roots = {"proc_root": device / "proc", "sys_root": sys_root}
        result = cell(PYTHON, "-c", heat, seen, *changes, **roots, time_limit_s=120)
        assert result["status"] == "ok"
    finally:
        done.set()
        watcher.join()
    found = excursions(table.read_bytes(), LIMITS)
    assert found is not None
    assert [(e.what, e.sensor, e.start, e.value) for e in found] == [
        ("cpu_temp_max", "thermal_zone0.cpu-milli", 45.68, 71.23),
        ("cap_drop", "policy4", 2_800_000, 1_400_000),
    ]
    assert tuple(live) == found
    # the look after it, give or take two, since the cell began a little after its record says
    looks_ms = [int(row["t_ms"]) for row in rows_of(table)]
    for path, excursion in zip(changes[::2], found, strict=True):
        at_ms = (path.stat().st_mtime - result["started_unix_s"]) * 1e3
        seen_late = bisect(looks_ms, excursion.t_ms - 1) - bisect(looks_ms, at_ms)
        assert at_ms > 1400
        assert -2 <= seen_late <= 2


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
    # it may have had to wait between reading two clocks
    assert inspection.clock_step_s == pytest.approx(0, abs=5)
    assert inspection.clock_off_s is not None
    assert abs(inspection.clock_off_s) <= inspection.clock_error_s + 0.01  # it was read in between
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
            deadline = time.monotonic() + 120
            own: list[OtherEngine] = []
            # on a busy machine it may get to its work late, and little of a core
            while not (own and own[0].is_busy):
                assert process.poll() is None and time.monotonic() < deadline, own
                inspection = inspect(TARGET, launcher, work_dir=tmp_path, grace_s=0)
                own = [e for e in inspection.engines if e.pid == process.pid]
            with pytest.raises(DeviceError, match=r"is running and uses \d+% of a core; end it"):
                refuse(findings(inspection, Needs()))
        finally:
            process.kill()


def test_a_program_that_is_no_launcher_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="is it a moe-launcher"):
        inspect(TARGET, Path("/bin/true"), work_dir=tmp_path)
    with pytest.raises(DeviceError, match="is it a moe-launcher"):
        read_state(TARGET, Path("/bin/true"))


# --- all of it, on this machine and behind a link ------------------------------------------------


def behind(link: LoopLink, launcher: Path, root: Path, campaign_dir: Path) -> RemoteTarget:
    """A device that is a directory of this machine, claimed for the campaign."""
    target = RemoteTarget(
        link,
        "ssh",
        "box",
        directory=str(root / "dev"),
        device_lock=str(root / "device.lock"),
        lease_s=30.0,
        reconnect_s=0.0,
    )
    target.install_launcher(launcher, sha256_file(launcher))
    target.claim(owner_of(campaign_dir))
    return target


@pytest.fixture
def box(launcher: Path, tmp_path: Path) -> Iterator[RemoteTarget]:
    target = behind(LoopLink(), launcher, tmp_path, tmp_path / "runs" / "c1")
    yield target
    target.close()


def ready(target: Target, launcher: Path, tmp_path: Path, **behaviour: Any) -> Readiness:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"m" * 4096)
    deployed = Deployed(fake_build(launcher), model, (model,), {})
    return check_device(
        target,
        deployed,
        make_plan(make_arm(**behaviour), make_arm("other", **behaviour)),
        check(compose(["+experiment=cache_sizes"])),
        campaign_dir=tmp_path / "runs" / "c1",
        model_bytes=4096,
    )


def test_a_device_is_ready_here_and_behind_a_link(
    box: RemoteTarget, launcher: Path, tmp_path: Path
) -> None:
    here = ready(TARGET, launcher, tmp_path)
    there = ready(box, launcher, tmp_path)
    topics = {"space", "direct_io", "memory", "sensors", "caps", "clock"}
    for found in (here, there):
        assert {f.about for f in found.findings} >= topics
        assert found.page_bytes == os.sysconf("SC_PAGE_SIZE")
        assert all(f.level != "failure" for f in found.findings)
    assert here.work_dir == tmp_path  # the campaign's is not made yet
    assert there.work_dir == tmp_path / "dev" / "campaigns" / "c1"
    assert not (Path(there.work_dir) / "preflight").exists()


def test_an_arm_that_the_engine_refuses_is_refused_on_the_device(
    box: RemoteTarget, launcher: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"cells\.baseline: the engine refuses it: no such flag"):
        ready(box, launcher, tmp_path, refuse="no such flag")
    assert not (tmp_path / "dev" / "campaigns" / "c1" / "preflight").exists()


def test_a_cell_that_a_killed_harness_left_is_ended_not_taken_for_an_engine(
    launcher: Path, tmp_path: Path
) -> None:
    campaign = tmp_path / "runs" / "c1"
    engine = tmp_path / "moe-engine"
    engine.symlink_to(sys.executable)
    link = LoopLink()
    killed = behind(link, launcher, tmp_path, campaign)
    work = killed.work_dir(campaign / "cells" / "00-a")
    killed.run(
        [
            *(str(killed._shell.installed_launcher()), "run", "--dir", str(work), "--probe-s", "0"),
            *("--", str(engine), "-c", "while True: pass"),
        ],
        log=work / "launcher.txt",
        lock=killed.work_dir(campaign) / ".cell.lock",
        tails={},
    )
    link.cut()  # as if by SIGKILL: nothing is said
    again = behind(LoopLink(), launcher, tmp_path, campaign)
    try:
        left = [f for f in ready(again, launcher, tmp_path).findings if "moe-engine" in f.words]
        assert not [f for f in left if f.level == "failure"]
        assert json.loads((Path(work) / "result.json").read_text())["status"] == "killed"
    finally:
        again.close()


def test_a_device_is_described_beside_the_machine_that_drives_it(
    box: RemoteTarget, tmp_path: Path
) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"m")

    def described(target: Target) -> Environment:
        return describe_environment(
            target=target,
            model_path=model,
            model_bytes=1,
            model_sha256=None,
            engine_build_id="b",
            engine_version=None,
            runs_dir=tmp_path,
            work_dir=tmp_path / "dev",
        )

    here, there = described(TARGET), described(box)
    assert (here.host, here.android, there.android) == (None, None, None)
    assert there.target == TargetId("ssh", "box")
    assert there.host is not None
    assert there.host.hostname == here.hostname
    # this very machine, asked in another way
    same = ("hostname", "os", "kernel", "architecture", "cpu", "mem_total_bytes", "page_bytes")
    for name in same:
        assert getattr(there, name) == getattr(here, name), name
    for name in ("filesystem", "device", "mount_point", "size_bytes", "rotational"):
        assert getattr(there.model_storage, name) == getattr(here.model_storage, name), name
