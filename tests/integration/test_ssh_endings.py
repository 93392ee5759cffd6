"""Cells over ssh that end badly, disks that are full there, and devices that others have."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cell_parts import fake_build, make_arm, make_plan
from ssh_campaigns import ENDING_S, Bench, bench_on_loopback, wait_for
from together import Body, Outcomes, Together

from harness.device.claim import owner_of
from harness.device.deploy import deploy, deploy_launcher
from harness.device.launcher import Sampling
from harness.device.opening import open_target
from harness.journal import Journal
from harness.measuring import ModelFiles
from harness.planned import Arm, Plan
from harness.records import CellRecord
from harness.session import run_session
from harness.targets.local import LocalTarget
from harness.targets.target import DeviceBusy, Target

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

together = Together()
SLOW = {"baseline": {}, "half": {"token_ms": 1000}, "off": {}}
ENDINGS: dict[str, dict[str, Any]] = {
    "refused": {"exit": 4, "complain": "needs 9 bytes, allowed 8"},
    "no-model": {"exit": 3, "complain": "m.gguf: not a GGUF"},
    "no-summary": {"die_after": 2},
    "crash": {"signal": int(signal.SIGSEGV)},
    "abort": {"signal": int(signal.SIGABRT)},
    "killed": {"signal": int(signal.SIGKILL)},
    "hang": {"hang": True},
    "deaf": {"hang": True, "ignore_term": True},
}
MIB = 1 << 20


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, launcher: Path) -> Iterator[Outcomes]:
    def run(body: Body, root: Path, stack: contextlib.ExitStack) -> None:
        body(bench_on_loopback(root, launcher, stack))

    with together.running(request, run) as outcomes:
        yield outcomes


# --- an engine ends badly ---


def measure(target: Target, launcher: Path, place: Path, arms: list[Arm]) -> list[CellRecord]:
    """A plan on a target as the harness runs it."""
    model = place.parent / "model.gguf"
    build = deploy_launcher(target, fake_build(launcher))
    target.claim(owner_of(place))
    deployed = deploy(
        target, build, model=model, model_files=(model,), arms=arms, cache_dir=str(place.parent)
    )
    plan: Plan = make_plan(*arms)
    with Journal.open(place) as journal:
        return run_session(
            plan,
            target=target,
            build=deployed.build,
            model=ModelFiles(deployed.model, deployed.model_files, None),
            journal=journal,
            on_event=lambda _event: None,
            sampling=Sampling(probe_s=0),
        )


@together
def test_every_way_a_cell_can_end_is_told_as_here(bench: Bench) -> None:
    arms = [make_arm(), *(make_arm(name, **asked) for name, asked in ENDINGS.items())]
    if has_cgroup(bench.launcher):
        hungry = make_arm("hungry", eat_mb=200)
        arms.append(
            dataclasses.replace(hungry, cgroup_limit_bytes=64 * MIB, cgroup_mode="required")
        )
    arms = [dataclasses.replace(arm, time_limit_s=10.0) for arm in arms]
    here = LocalTarget("here", str(bench.root / "local.lock"))
    there = open_target(
        bench.sshd.config(dir=str(bench.device), device_lock=str(bench.lock)),
        say=lambda _line: None,
        on_transfer=lambda *_: None,
    )
    bench.campaign("here").parent.mkdir()
    (bench.campaign("here").parent / "model.gguf").write_bytes(b"none")
    try:
        with ThreadPoolExecutor(2) as pool:
            both = [
                pool.submit(measure, target, bench.launcher, bench.campaign(name), arms)
                for name, target in (("here", here), ("there", there))
            ]
            local, remote = (future.result() for future in both)
    finally:
        here.close()
        there.close()
    assert [r.status for r in remote].count("ok") == 2
    for one, other in zip(local, remote, strict=True):
        assert told(other) == told(one)
        print(f"{other.cell}: {told(other)}")
    bench.check_left_clean()


def told(record: CellRecord) -> tuple[str, int | None, str | None]:
    return record.status, record.exit_code, record.status_detail


def has_cgroup(launcher: Path) -> bool:
    argv = [launcher, "selftest", "--cgroup-limit-bytes", str(64 * MIB)]
    done = subprocess.run(argv, check=False, capture_output=True)
    return bool(json.loads(done.stdout)["cgroup_available"])


# --- the device's disk is full ---


@contextlib.contextmanager
def small_disk(bench: Bench) -> Iterator[None]:
    """The device's directory is on a disk of 64 MiB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small tmpfs needs root")
    bench.device.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(bench.device)]
    if subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("this machine does not allow mounting a tmpfs")
    try:
        yield
    finally:
        bench.close()
        try:
            wait_for(lambda: not bench.processes())
        finally:
            subprocess.run(["umount", "-l", str(bench.device)], check=True)


def on_a_small_disk(body: Body) -> Body:
    @functools.wraps(body)
    def there(bench: Bench, *values: object) -> None:
        with small_disk(bench):
            body(bench, *values)

    return there


def fill(bench: Bench, left: int) -> Path:
    """Leaves so many bytes, or none where somebody else writes at the same time."""
    filler = bench.device / "filler"
    stat = os.statvfs(bench.device)
    with filler.open("wb", buffering=0) as f, contextlib.suppress(OSError):
        for _ in range((stat.f_bavail * stat.f_frsize - left) // 4096):
            f.write(bytes(4096))
    return filler


@together
@on_a_small_disk
def test_a_disk_without_room_is_told_before_anything_is_sent(small: Bench) -> None:
    campaign = small.start(small.model(70 * MIB))
    campaign.ends(1)
    error = campaign.error()
    assert "needs 70 MiB" in error
    assert "target.dir=DIR" in error
    assert not list(small.device.rglob("*.part"))
    wait_for(small.is_free)


@together
@on_a_small_disk
def test_a_disk_that_fills_up_in_a_transfer(small: Bench) -> None:
    model = small.model(45 * MIB)
    campaign = small.start(model, pause_at=5 * MIB)
    campaign.until_paused()
    (part,) = small.device.rglob(f"{model.name}.part")
    filler = fill(small, 1 * MIB)
    campaign.go_on()
    campaign.ends(1)
    error = campaign.error()
    print(error)
    assert "o space left on device" in error
    assert "make room there" in error
    assert not part.exists()  # the device is not left full
    wait_for(small.is_free)
    filler.unlink()
    small.start(model).ends(0)
    small.check_whole()
    small.check_left_clean()


@together.each(0, 100 * 1024)
@on_a_small_disk
def test_a_disk_that_fills_up_in_a_cell(small: Bench, left: int) -> None:
    model = small.model()
    arms = {"baseline": {}, "half": {"token_ms": 200}, "off": {}}
    campaign = small.start(model, arms=arms, n_predict=20)
    small.until("cell_started", 1)
    wait_for(lambda: list(small.device.rglob("telemetry.jsonl")))
    filler = fill(small, left)
    campaign.ends(1)
    error = campaign.error()
    print(error)
    assert "o space left on device" in error
    assert [e["index"] for e in small.events("cell_finished")][:1] == [0]
    kept = small.starts()
    filler.unlink()
    small.start(model, arms=arms, n_predict=20).ends(0)
    small.check_whole(n_predict=20)
    assert small.starts()[0] == kept[0] == 1
    small.check_left_clean()


# --- others ---


@together
def test_the_second_campaign_refuses_or_waits(bench: Bench) -> None:
    model, go = bench.model(), bench.root / "go"
    held = SLOW | {"half": {"until": str(go)}}
    first = bench.start(model, "first", arms=held, n_predict=20, lease_s=12.0)
    bench.until("cell_started", 1, "first")

    second = bench.start(model, "second")
    second.ends(1)
    error = second.error()
    assert "another campaign measures there" in error
    assert f"process {first.process.pid}" in error
    assert str(bench.campaign("first")) in error
    assert not bench.campaign("second").exists()

    here = LocalTarget("here", str(bench.lock))
    with pytest.raises(DeviceBusy, match=f"process {first.process.pid}"):
        here.claim(owner_of(bench.campaign("local")))

    waiting = bench.start(model, "second", wait_for_device_s=600.0)
    wait_for(lambda: "waiting for it" in waiting.said)
    time.sleep(1.0)
    first.kill()
    killed = time.monotonic()
    waiting.ends(0)
    print(f"the second had all it wanted {time.monotonic() - killed:.1f} s after the first's end")
    bench.check_whole("second")
    assert f"{bench.sshd.address}: is free after" in waiting.said

    go.touch()
    bench.start(model, "first", arms=held, n_predict=20, lease_s=20.0).ends(0)
    bench.check_whole("first", n_predict=20)
    bench.check_left_clean()


@together
def test_a_campaign_of_this_machine_keeps_others_away(bench: Bench) -> None:
    here = LocalTarget("here", str(bench.lock))
    here.claim(owner_of(bench.campaign("local")))
    refused = bench.start(bench.model())
    refused.ends(1)
    assert f"process {os.getpid()}" in refused.error()
    assert str(bench.campaign("local")) in refused.error()
    here.close()
    assert [str(p) for p in (bench.device / "campaigns").rglob("*")] == []


# --- the user has enough ---


@together
def test_ctrl_c_in_a_cell(bench: Bench) -> None:
    model = bench.model()
    campaign = bench.start(model, arms=SLOW, n_predict=20)
    bench.until("cell_started", 1)
    wait_for(lambda: any("fake_engine" in line for line in bench.processes()))
    campaign.interrupt()
    took = campaign.ends(130)
    print(f"ended {took:.1f} s after Ctrl-C")
    assert [e["index"] for e in bench.events("cell_finished")] == [0]  # not at the cell's own end
    bench.check_left_clean()
    bench.start(model, arms=SLOW, n_predict=20).ends(0)
    bench.check_whole(n_predict=20)
    bench.check_left_clean()


@together
def test_ctrl_c_twice(bench: Bench) -> None:
    campaign = bench.start(bench.model(), arms=SLOW, n_predict=20, lease_s=10.0)
    bench.until("cell_started", 1)
    campaign.interrupt()
    time.sleep(0.05)
    campaign.interrupt()
    campaign.ends(130)
    bench.until_clean(10.0 + ENDING_S)
