"""Machines that are not as usual: other login shells, no SFTP, full disks, hung or restarted."""

from __future__ import annotations

import contextlib
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ssh_parts import Sshd, needs_root
from together import Body, Outcomes, Together

from harness.errors import DeviceError
from harness.targets.link import LinkLost
from harness.targets.ssh import SshLink

ODD = [
    "",
    "a b",
    "it's",
    'say "x"',
    "$(echo no) `echo no` $HOME",
    "a\\b\\\\c\\",
    "new\nline",
    "é\t*",
]

Make = Callable[..., Sshd]
together = Together()


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[Outcomes]:
    """Of those that wait, or copy for long: each with a machine of its own."""

    def run(body: Body, root: Path, stack: contextlib.ExitStack) -> None:
        machine = Sshd(root / "sshd")
        stack.callback(machine.stop)
        body(machine.start(), root)

    with together.running(request, run) as outcomes:
        yield outcomes


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """A machine made to order, and started."""
    made: list[Sshd] = []

    def order(**how: object) -> Sshd:
        machine = Sshd(tmp_path / "sshd", **how)  # type: ignore[arg-type]
        made.append(machine)
        return machine.start()

    yield order
    for machine in made:
        machine.stop()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(3 << 20))
    return path


def odd_arguments_arrive(link: SshLink) -> None:
    done = link.call(["printf", "%s\\0", *ODD], timeout_s=120)
    assert (done.code, done.stderr) == (0, b"")
    assert done.stdout == b"".join(text.encode() + b"\0" for text in ODD)
    assert link.call(["sh", "-c", "kill -9 $$"], timeout_s=120).code == -9
    channel = link.open(["cat"])
    channel.send(b"x")
    until = time.monotonic() + 120
    while not (lines := channel.lines()):
        assert time.monotonic() < until
    assert lines == [b"x"]
    channel.close()


@pytest.mark.parametrize("shell", ["bash", "dash", "mksh", "busybox", "fish", "zsh", "ksh"])
def test_login_shells(make: Make, tmp_path: Path, file: Path, shell: str) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"no {shell}")
    if shell == "busybox":
        (tmp_path / "sh").symlink_to(path)
        path = str(tmp_path / "sh")
    machine = make(shell=path)
    link = SshLink(machine.config())
    odd_arguments_arrive(link)
    link.put(file, str(tmp_path / "there 'x'"))
    link.get(str(tmp_path / "there 'x'"), tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == file.read_bytes()
    link.close()


def test_startup_files_that_talk(make: Make, tmp_path: Path, file: Path) -> None:
    machine = make(shell=shutil.which("bash"))
    (machine.home / ".bashrc").write_text("echo hello; printf half; echo trouble >&2\n")
    link = SshLink(machine.config())
    odd_arguments_arrive(link)
    link.get(str(file), tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == file.read_bytes()
    link.close()


def test_startup_files_that_talk_into_sftp(make: Make, tmp_path: Path, file: Path) -> None:
    """As they do where the SFTP server is a program that the login shell starts."""
    server = Path("/usr/lib/openssh/sftp-server")
    if not server.exists():
        pytest.skip(f"no {server}")
    machine = make(shell=shutil.which("bash"))
    machine.stop()
    conf = machine.root / "sshd_config"
    conf.write_text(conf.read_text().replace("internal-sftp", str(server)))
    (machine.home / ".bashrc").write_text("echo hello\n")
    machine.start()
    link = SshLink(machine.config())
    link.put(file, str(tmp_path / "there"))
    assert (tmp_path / "there").read_bytes() == file.read_bytes()
    link.close()


@pytest.mark.parametrize("shell", ["nologin", "false"])
def test_no_login_shell(make: Make, shell: str) -> None:
    path = shutil.which(shell, path="/usr/sbin:/sbin:/usr/bin:/bin")
    machine = make(shell=path)
    link = SshLink(machine.config())
    with pytest.raises(
        DeviceError, match=r"login shell of \w+ did not run true .exit code 1.: "
    ) as e:
        link.call(["true"], timeout_s=120)
    assert not isinstance(e.value, LinkLost)
    channel = link.open(["cat"])
    with pytest.raises(DeviceError, match="login shell"):
        for _ in range(12_000):
            channel.lines()
            time.sleep(0.01)
    link.close()


def test_a_machine_that_starts_no_programs(make: Make) -> None:
    machine = make(settings="ForceCommand internal-sftp")
    link = SshLink(machine.config())
    with pytest.raises(DeviceError, match="did not run true"):
        link.call(["true"], timeout_s=3)
    link.close()
    machine.stop()
    machine.configure("MaxSessions 0")
    machine.start()
    link = SshLink(machine.config())
    with pytest.raises(DeviceError, match="starts no program") as e:
        link.call(["true"], timeout_s=120)
    assert not isinstance(e.value, LinkLost)
    link.close()


def without_sftp(machine: Sshd) -> None:
    machine.stop()
    conf = machine.root / "sshd_config"
    conf.write_text(conf.read_text().replace("Subsystem", "#Subsystem"))
    machine.start()


def test_a_machine_without_sftp(make: Make, tmp_path: Path, file: Path) -> None:
    machine = make()
    without_sftp(machine)
    link = SshLink(machine.config())
    there = tmp_path / "it's there"
    told: list[int] = []
    link.put(file, str(there), lambda done, _: told.append(done))
    assert there.read_bytes() == file.read_bytes()
    assert (told[0], told[-1]) == (0, file.stat().st_size)
    there.write_bytes(file.read_bytes()[:1_000_000])
    told.clear()
    link.put(file, str(there), lambda done, _: told.append(done))
    assert told[0] == 1_000_000
    assert there.read_bytes() == file.read_bytes()
    there.write_bytes(file.read_bytes() + b"x")
    link.put(file, str(there))
    assert there.read_bytes() == file.read_bytes()
    with pytest.raises(DeviceError, match="cannot write"):
        link.put(file, str(tmp_path / "absent" / "x"))
    with pytest.raises(DeviceError, match="cannot write"):
        link.put(file, str(tmp_path))
    link.close()


def with_disk(tmp_path: Path, options: str) -> tuple[str, ...]:
    """A small disk of the machine's own at `tmp_path/disk`."""
    needs_root()
    (tmp_path / "disk").mkdir()
    mount = f"mount -t tmpfs -o {options} small {tmp_path / 'disk'}"
    return ("unshare", "-m", "sh", "-ec", f'{mount}; exec "$@"', "sh")


@pytest.mark.parametrize("sftp", [True, False])
def test_a_full_disk(make: Make, tmp_path: Path, file: Path, sftp: bool) -> None:
    machine = make(prefix=with_disk(tmp_path, "size=1m"))
    if not sftp:
        without_sftp(machine)
    link = SshLink(machine.config())
    there = str(tmp_path / "disk" / "file")
    with pytest.raises(DeviceError, match="No space left on device") as e:
        link.put(file, there)
    assert not isinstance(e.value, LinkLost)
    assert link.call(["ls", str(tmp_path / "disk")], timeout_s=120).stdout == b"file\n"
    link.close()


@pytest.mark.parametrize("sftp", [True, False])
def test_a_disk_that_cannot_be_written(make: Make, tmp_path: Path, file: Path, sftp: bool) -> None:
    machine = make(prefix=with_disk(tmp_path, "ro"))
    if not sftp:
        without_sftp(machine)
    link = SshLink(machine.config())
    with pytest.raises(DeviceError, match="Read-only file system"):
        link.put(file, str(tmp_path / "disk" / "file"))
    link.close()


def test_new_keys_on_the_way(make: Make, tmp_path: Path) -> None:
    """The machine wants new session keys after each megabyte."""
    machine = make(settings="RekeyLimit 1M")
    link = SshLink(machine.config())
    data = os.urandom(20 << 20)
    (tmp_path / "big").write_bytes(data)
    channel = link.open(["cat"])
    for _ in range(2):
        channel.send(b"x")
        assert link.call(["cat"], timeout_s=600, stdin=data).stdout == data
        (tmp_path / "there").unlink(missing_ok=True)
        link.put(tmp_path / "big", str(tmp_path / "there"))
        assert (tmp_path / "there").read_bytes() == data
        link.get(str(tmp_path / "there"), tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == data
    assert channel.lines() == [b"x", b"x"]
    link.close()


@pytest.mark.slow
@together
def test_cut_again_and_again(machine: Sshd, root: Path) -> None:
    """A copy that is killed at random points arrives whole, and each attempt goes on.

    Points of the file, not of time: a fast machine is through before a clock has gone off.
    """
    pick = random.Random(6)  # noqa: S311
    source, there = root / "source", root / "there"
    source.write_bytes(os.urandom(1 << 20) * 100)
    size = source.stat().st_size
    link = SshLink(machine.config())
    cuts = 0
    for _ in range(4):
        there.unlink(missing_ok=True)
        for left in (2, 1, 0):  # cuts to come
            before = there.stat().st_size if there.exists() else 0
            at = before + pick.uniform(0.0, 0.5) * (size - before) if left else math.inf
            began: list[int] = []

            def tell(done: int, _total: int, began: list[int] = began, at: float = at) -> None:
                began.append(done)
                if done >= at and machine.sessions():
                    machine.kill()

            try:
                link.put(source, str(there), tell)
            except LinkLost:
                cuts += 1
                machine.start()
                link.reconnect()
            assert not began or began[0] >= before
        assert there.read_bytes() == source.read_bytes()
    assert cuts == 8
    link.close()


@pytest.mark.slow
@together
def test_a_machine_that_hangs(machine: Sshd, _root: Path) -> None:
    """Its kernel still acknowledges all that we send."""
    link = SshLink(machine.config())
    for pid in machine.sessions():
        with contextlib.suppress(ProcessLookupError):  # one that was only logging us in
            os.kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(LinkLost, match="no sign of life"):
        link.call(["cat"], timeout_s=100, stdin=bytes(64 << 20))
    assert time.monotonic() - started < 60
    started = time.monotonic()
    link.close()
    assert time.monotonic() - started < 8
    for pid in machine.sessions():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
@together
def test_our_own_pause_is_not_its_death(machine: Sshd, _root: Path) -> None:
    script = f"""
import time
from harness.target_config import SshConfig
from harness.targets.ssh import SshLink
link = SshLink({machine.config()!r})
print("ready", flush=True)
input()
print(link.call(["echo", "alive"], timeout_s=120).stdout)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(1)
        process.send_signal(signal.SIGSTOP)
        time.sleep(14)
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(b"\n", timeout=300)
    assert out == b"b'alive\\n'\n"


def test_switched_off_and_on(make: Make) -> None:
    """What ran there is gone at once, and it has another boot id."""
    machine = make(own_processes=True, home=True)
    link = SshLink(machine.config())
    script = (
        "setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo; cat /proc/sys/kernel/random/boot_id"
    )
    first = link.call(["sh", "-c", script], timeout_s=120).stdout
    count = ["sh", "-c", "grep -l ^sleep /proc/[0-9]*/comm | wc -l"]
    until = time.monotonic() + 120
    while link.call(count, timeout_s=120).stdout.strip() != b"1":  # setsid becomes it
        assert time.monotonic() < until
    machine.switch_off()
    with pytest.raises(LinkLost):
        link.call(["true"], timeout_s=120)
    machine.start()
    link.reconnect()
    assert link.call(count, timeout_s=120).stdout.strip() == b"0"
    second = link.call(["cat", "/proc/sys/kernel/random/boot_id"], timeout_s=120).stdout
    assert len(second) == 37
    assert first.strip() != second.strip()
    link.close()
