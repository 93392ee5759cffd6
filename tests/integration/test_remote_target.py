"""What stands above every link: cells outlive it, the device is locked, files arrive whole."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launcher_parts import is_alive
from loop_link import LoopLink

from harness.cachedir import sha256_file
from harness.device.claim import owner_of
from harness.errors import DeviceError, Interrupted
from harness.stopping import StopFlag
from harness.targets.link import LinkLost, OnBytes
from harness.targets.remote import RemoteTarget
from harness.targets.remote_running import RemoteRunning
from harness.targets.target import CellLost, DeviceBusy

# so long nobody here is silent, on a machine that is busy
LEASE_S = 10.0
# TERM, 2 s, KILL, and such a machine
ENDED_S = LEASE_S + 60.0
NASTY = "a b'c\"d$(touch x)`e`\n\\ü;&|<>*?"


class Device:
    """One directory as a device, and targets on it."""

    def __init__(self, root: Path, launcher: Path) -> None:
        self.root = root
        self.launcher = launcher
        self.targets: list[RemoteTarget] = []

    def target(self, link: LoopLink, reconnect_s: float = 30.0, name: str = "box") -> RemoteTarget:
        target = RemoteTarget(
            link,
            "ssh",
            name,
            directory=str(self.root / "dev"),
            device_lock=str(self.root / "device.lock"),
            lease_s=LEASE_S,
            reconnect_s=reconnect_s,
        )
        target.install_launcher(self.launcher, sha256_file(self.launcher))
        self.targets.append(target)
        return target


@pytest.fixture
def device(tmp_path: Path, launcher: Path) -> Iterator[Device]:
    device = Device(tmp_path, launcher)
    yield device
    for target in device.targets:
        target.close()


def start(target: RemoteTarget, cell_dir: Path, *program: str) -> RemoteRunning:
    work = target.work_dir(cell_dir)
    argv = [str(target._shell.installed_launcher()), "run", "--dir", str(work), "--cwd", str(work)]
    argv += ["--probe-s", "0", "--", *program]
    return target.run(
        argv,
        log=work / "launcher.txt",
        lock=target.work_dir(cell_dir.parent) / ".cell.lock",
        tails={work / "stdout.txt": 100},
    )


def until_ended(running: RemoteRunning, limit_s: float = 240.0) -> int:
    end = time.monotonic() + limit_s
    while (code := running.poll()) is None:
        assert time.monotonic() < end, "still running"
        time.sleep(0.05)
    return code


def wait_for(is_so: Callable[[], bool], limit_s: float = 120.0) -> None:
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.05)


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    directory = tmp_path / "runs" / "campaign-1"
    (directory / "cell").mkdir(parents=True)
    return directory


def test_a_cell_runs_and_its_files_arrive(device: Device, campaign: Path) -> None:
    target = device.target(LoopLink())
    target.claim(owner_of(campaign))
    running = start(target, campaign / "cell", "sh", "-c", "echo out; echo err >&2")
    assert until_ended(running) == 0
    target.get(target.work_dir(campaign / "cell"), campaign / "cell")
    assert (campaign / "cell" / "stdout.txt").read_text() == "out\n"
    assert (campaign / "cell" / "stderr.txt").read_text() == "err\n"
    result = json.loads((campaign / "cell" / "result.json").read_text())
    assert (result["status"], result["host_lost"]) == ("ok", False)
    target.clear(target.work_dir(campaign / "cell"))
    assert not Path(target.work_dir(campaign / "cell")).exists()


def test_a_cell_goes_on_while_the_connection_is_away(device: Device, campaign: Path) -> None:
    link = LoopLink()
    target = device.target(link)
    said: list[str] = []
    target.say = said.append
    target.claim(owner_of(campaign))
    go = device.root / "go"
    script = f"until [ -e {go} ]; do sleep 0.02; done; echo whole"
    running = start(target, campaign / "cell", "sh", "-c", script)
    assert running.poll() is None
    link.refuse_reconnects = 1
    link.cut()
    go.touch()
    assert until_ended(running) == 0
    target.get(target.work_dir(campaign / "cell"), campaign / "cell")
    assert (campaign / "cell" / "stdout.txt").read_text() == "whole\n"
    assert len(said) == 3
    assert "connection lost (" in said[0]
    assert said[1] == "box: not yet: refused by the test"
    assert "connected again after" in said[2]


def test_a_connection_that_breaks_while_nothing_is_asked_is_mended(
    device: Device, campaign: Path
) -> None:
    link = LoopLink()
    target = device.target(link)
    target.claim(owner_of(campaign))
    link.cut()
    wait_for(lambda: target._lease.lost() is not None)
    target.keep()
    assert not link.down
    time.sleep(LEASE_S + 1.0)  # it beats again, and so has the device still
    target.keep()
    with pytest.raises(DeviceBusy):
        device.target(LoopLink()).claim(owner_of(campaign.with_name("campaign-2")))


def test_what_a_lost_attempt_left_is_not_taken_for_the_next(device: Device, campaign: Path) -> None:
    target = device.target(LoopLink())
    target.claim(owner_of(campaign))
    work = target.work_dir(campaign / "cell")
    for text in ("first", "second"):
        target.clear(work)
        assert until_ended(start(target, campaign / "cell", "echo", text)) == 0
    target.get(work, campaign / "cell")
    assert (campaign / "cell" / "stdout.txt").read_text() == "second\n"


def test_files_from_before_a_restart_do_not_count(device: Device, campaign: Path) -> None:
    """A cell had ended; what it wrote last may not have come to the storage."""
    target = device.target(LoopLink())
    target.claim(owner_of(campaign))
    assert until_ended(start(target, campaign / "cell", "true")) == 0
    target._lease.boot_id = "another"
    with pytest.raises(CellLost, match="restarted"):
        target.get(target.work_dir(campaign / "cell"), campaign / "cell")


def test_a_peer_that_is_silent_is_noticed(device: Device, campaign: Path) -> None:
    link = LoopLink()
    target = device.target(link)
    target.claim(owner_of(campaign))
    running = start(target, campaign / "cell", "sleep", "4")
    link.silent = True
    assert until_ended(running) == 0
    assert not link.silent  # it was connected again


def test_a_device_that_hears_nothing_ends_the_cell(device: Device, campaign: Path) -> None:
    link = LoopLink()
    target = device.target(link, reconnect_s=60.0)
    target.claim(owner_of(campaign))
    pid_file = device.root / "pid"
    running = start(target, campaign / "cell", "sh", "-c", f"echo $$ > {pid_file}; sleep 600")
    wait_for(lambda: pid_file.exists() and pid_file.read_text() != "")
    pid = int(pid_file.read_text())
    link.refuse_reconnects = 6  # longer than the lease
    link.cut()
    assert until_ended(running) == 0
    assert not Path(f"/proc/{pid}").exists()
    target.get(target.work_dir(campaign / "cell"), campaign / "cell")
    assert json.loads((campaign / "cell" / "result.json").read_text())["host_lost"] is True


def test_what_a_killed_harness_leaves_is_gone_soon(device: Device, campaign: Path) -> None:
    link = LoopLink()
    target = device.target(link)
    target.claim(owner_of(campaign))
    start(target, campaign / "cell", "sleep", "600")
    target._lease.drop()  # no beat comes any more
    mine = f"{device.root}/"
    began = time.monotonic()
    wait_for(lambda: not processes_of(mine), ENDED_S)
    assert time.monotonic() - began > LEASE_S / 2
    other = device.target(LoopLink())
    other.claim(owner_of(campaign.with_name("campaign-2")))  # the lock is free, too


def processes_of(mark: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in line and int(process.name) != os.getpid():
            found.append(line)
    return found


def test_a_device_that_stays_away_is_given_up(device: Device, campaign: Path) -> None:
    link = LoopLink()
    target = device.target(link, reconnect_s=1.0)
    target.claim(owner_of(campaign))
    running = start(target, campaign / "cell", "sleep", "600")
    link.refuse_reconnects = 1000
    link.cut()
    with pytest.raises(DeviceError, match=r"box: no connection for .*what was measured is kept"):
        until_ended(running)
    left = link.refuse_reconnects
    with pytest.raises(DeviceError, match="no connection"):
        target.call(["true"])
    assert link.refuse_reconnects == left  # not tried, nor waited for, twice


def test_another_boot_is_a_lost_cell(device: Device, campaign: Path) -> None:
    target = device.target(LoopLink())
    target.claim(owner_of(campaign))
    running = start(target, campaign / "cell", "sleep", "600")
    target._lease.boot_id = "another"
    with pytest.raises(CellLost, match="box: the device restarted during the cell"):
        running.poll()


def test_one_campaign_at_a_time(device: Device, campaign: Path) -> None:
    first, second = device.target(LoopLink()), device.target(LoopLink(), name="also box")
    first.claim(owner_of(campaign))
    other = owner_of(campaign.with_name("campaign-2"))
    with pytest.raises(DeviceBusy) as caught:
        second.claim(other)
    assert "also box: another campaign measures there" in str(caught.value)
    assert str(campaign) in str(caught.value)
    assert f"process {os.getpid()}" in str(caught.value)
    first.claim(owner_of(campaign))  # again by the same campaign: it has it
    first.close()
    second.claim(other)


def test_what_is_installed_is_not_sent_again(device: Device, tmp_path: Path) -> None:
    link = LoopLink()
    target = device.target(link)
    file = tmp_path / NASTY
    file.write_bytes(os.urandom(100_000))
    sha256 = sha256_file(file)
    place = Path(target.install(file, sha256))
    assert place.name == NASTY
    assert place.read_bytes() == file.read_bytes()
    sent = len(link.puts)
    assert target.install(file, sha256) == place
    assert len(link.puts) == sent
    place.write_bytes(b"damaged")
    target.install(file, sha256)
    assert place.read_bytes() == file.read_bytes()
    assert not (tmp_path / "x").exists()


def test_what_does_not_arrive_as_it_was_sent_is_refused(device: Device, tmp_path: Path) -> None:
    target = device.target(LoopLink())
    file = tmp_path / "model.gguf"
    file.write_bytes(b"one")
    with pytest.raises(DeviceError, match="does not arrive there as it was sent"):
        target.install(file, "0" * 64)
    assert not list((tmp_path / "dev").rglob("model.gguf*"))


def test_an_argument_is_what_it_is(device: Device, campaign: Path) -> None:
    target = device.target(LoopLink())
    target.claim(owner_of(campaign))
    running = start(target, campaign / "cell", "printf", "%s\\0", NASTY, "", "é\n")
    assert until_ended(running) == 0
    target.get(target.work_dir(campaign / "cell"), campaign / "cell")
    stdout = (campaign / "cell" / "stdout.txt").read_text()
    assert stdout == f"{NASTY}\0\0é\n\0"


def test_a_device_without_a_place_for_us(tmp_path: Path, launcher: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DeviceError, match=r"box: .*file/dev cannot be made there.*target\.dir=DIR"):
        target = RemoteTarget(
            LoopLink(),
            "ssh",
            "box",
            directory=str(tmp_path / "file" / "dev"),
            device_lock=str(tmp_path / "lock"),
            lease_s=LEASE_S,
            reconnect_s=1.0,
        )
        target.install_launcher(launcher, sha256_file(launcher))


def test_what_an_earlier_attempt_left_is_no_result(device: Device, campaign: Path) -> None:
    """Without `clear` what was to be started would be taken for started before a break."""
    target = device.target(LoopLink())
    target.claim(owner_of(campaign))
    for said in ("one", "two"):
        target.clear(target.work_dir(campaign / "cell"))
        running = start(target, campaign / "cell", "echo", said)
        assert until_ended(running) == 0
        target.get(target.work_dir(campaign / "cell"), campaign / "cell")
        assert (campaign / "cell" / "stdout.txt").read_text() == f"{said}\n"


def test_a_stop_is_heeded_while_the_network_says_nothing(device: Device, campaign: Path) -> None:
    class Deaf(LoopLink):
        def reconnect(self) -> None:
            over.wait(60)

    over = threading.Event()
    link, stop = Deaf(), StopFlag()
    target = device.target(link)
    target.heed(stop.nap)
    target.claim(owner_of(campaign))
    link.cut()
    threading.Timer(1.0, stop.request, ["SIGINT"]).start()
    began = time.monotonic()
    for _ in range(2):  # it is not tried again
        with pytest.raises(Interrupted, match="SIGINT"):
            target.call(["true"])
    target.close()
    assert 0.5 < time.monotonic() - began < 30.0
    over.set()


def test_a_broken_copy_that_gets_on_is_gone_on_from(device: Device, tmp_path: Path) -> None:
    class Shaky(LoopLink):
        """Breaks after each piece, more often than a copy may break that does not get on."""

        done = 0

        def put(self, source: Path, destination: str, on_bytes: OnBytes | None = None) -> None:
            assert on_bytes is not None
            on_bytes(self.done, 30)
            self.done += 1
            on_bytes(self.done, 30)
            if self.done < 30:
                raise LinkLost("shaky")
            super().put(source, destination)

    link = Shaky()
    target = device.target(LoopLink())
    target._shell._link = link
    target.heed(lambda _seconds: None)
    source = tmp_path / "source"
    source.write_text("whole")
    target.transfer(source, str(tmp_path / "there"))
    assert (tmp_path / "there").read_text() == "whole"


def test_a_cell_is_vouched_for_only_while_the_lock_was_ours(device: Device, campaign: Path) -> None:
    target = device.target(LoopLink())
    target.claim(owner_of(campaign))
    running = start(target, campaign / "cell", "true")
    assert until_ended(running) == 0
    target.vouch()
    running = start(target, campaign / "cell2", "true")
    holder = target._lease.holder
    assert holder is not None
    os.kill(holder, signal.SIGKILL)
    wait_for(lambda: not is_alive(holder))
    assert until_ended(running) == 0
    with pytest.raises(CellLost, match="box: the device's lock was lost during the cell"):
        target.vouch()
    running = start(target, campaign / "cell3", "true")  # it is taken again
    assert until_ended(running) == 0
    target.vouch()


def test_a_file_that_changed_on_the_device_is_noticed(
    device: Device, campaign: Path, tmp_path: Path
) -> None:
    target = device.target(LoopLink())
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights")
    place = Path(target.install(file, sha256_file(file)))
    target.claim(owner_of(campaign))
    assert until_ended(start(target, campaign / "cell", "true")) == 0
    target.vouch()
    place.write_bytes(b"other weights")
    with pytest.raises(DeviceError, match=r"model\.gguf: changed on the device; .*does not count"):
        target.vouch()
    place.unlink()
    with pytest.raises(DeviceError, match="changed on the device"):
        target.vouch()


def test_damage_that_keeps_the_time_is_found_when_it_is_installed(
    device: Device, tmp_path: Path
) -> None:
    target = device.target(LoopLink())
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights")
    place = Path(target.install(file, sha256_file(file)))
    times = place.stat()
    place.write_bytes(b"weighty")
    os.utime(place, ns=(times.st_atime_ns, times.st_mtime_ns))
    target.install(file, sha256_file(file))
    assert place.read_bytes() == b"weights"


def test_another_device_at_the_address_is_no_restart(device: Device, campaign: Path) -> None:
    link = LoopLink()
    target = device.target(link)
    target.claim(owner_of(campaign))
    running = start(target, campaign / "cell", "sleep", "600")
    target._shell.key = "of the device before"
    link.cut()
    with pytest.raises(DeviceError, match="box: another device answers in its place"):
        until_ended(running)
