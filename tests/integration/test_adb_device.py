"""The made-up Android device, as the real adb client finds it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from adb_device import AdbDevice, Settings, has_fuse, why_unavailable
from adb_device_parts import Adb
from launcher_parts import is_alive, wait_for

pytest_plugins = ["adb_fixtures"]
pytestmark = pytest.mark.skipif(
    why_unavailable() is not None, reason=f"no made-up adb device: {why_unavailable()}"
)


def test_output_errors_and_exit_code_are_kept_apart(adb: Adb) -> None:
    done = adb.run("shell", "cat; echo trouble >&2; exit 7", stdin=b"in\0put")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"in\0put", b"trouble\n")


def test_a_program_that_a_signal_ends_has_128_and_its_number(adb: Adb) -> None:
    assert adb.run("shell", "kill -9 $$").returncode == 137


def test_without_the_second_shell_protocol_nothing_tells_errors_and_exit_codes(
    adb_server: Adb,
) -> None:
    features = tuple(f for f in Settings().features if f != "shell_v2")
    with AdbDevice(Settings(features=features)) as old:
        adb_server.connect(old.serial)
        done = adb_server.on(old.serial).run("shell", "echo out; echo trouble >&2; exit 7")
        assert done.returncode == 0
        assert sorted(done.stdout.split()) == [b"out", b"trouble"]
        assert done.stderr == b""
        assert old.services() == ["shell:echo out; echo trouble >&2; exit 7"]


@pytest.mark.parametrize("service", ["exec-out", "shell"])
def test_bytes_come_unchanged(adb: Adb, service: str) -> None:
    done = adb.run(service, r"printf '\0\r\n\377%.0s' 1 2 3")
    assert done.stdout == b"\0\r\n\xff" * 3


def test_the_shell_is_androids_user(adb: Adb) -> None:
    text = adb.shell("id -u; id -un; pwd; echo $TMPDIR; hostname; mkdir /x; mkdir /data/x")
    lines = text.splitlines()
    assert lines[:5] == ["2000", "shell", "/", "/data/local/tmp", "localhost"]
    assert "Read-only file system" in lines[5]
    if os.geteuid() == 0:  # else all files there are those of the one user there is
        assert "Permission denied" in lines[6]


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, 9_999_999])
def test_a_file_goes_there_and_back(adb: Adb, tmp_path: Path, size: int) -> None:
    source = tmp_path / "a file"
    source.write_bytes(os.urandom(size))
    there = f"/data/local/tmp/new dir/{size} bytes"
    adb.ok("push", source, there)
    adb.ok("pull", there, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    assert adb.shell(f"stat -c '%s %Y %a' '{there}'").split() == [
        str(size),
        str(int(source.stat().st_mtime)),
        "666",
    ]


def test_a_directory_goes_there_and_back(adb: Adb, tmp_path: Path) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "ü.txt").write_text("x")
    adb.ok("push", tmp_path / "tree", "/data/local/tmp/")
    adb.ok("pull", "/data/local/tmp/tree", tmp_path / "back")
    assert (tmp_path / "back" / "sub" / "ü.txt").read_text() == "x"


def test_what_cannot_be_written_or_read_is_said(adb: Adb, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 3_000_000)
    done = adb.run("push", tmp_path / "f", "/system/f")
    assert done.returncode == 1
    assert b"Read-only file system" in done.stdout + done.stderr
    done = adb.run("pull", "/data/local/tmp/absent", tmp_path)
    assert done.returncode == 1
    assert b"No such file or directory" in done.stdout + done.stderr
    # and the connection has lived through that
    assert adb.shell("echo well") == "well\n"


@pytest.mark.parametrize(("version", "max_payload"), [(0x01000000, 4096), (0x01000001, 65536)])
def test_older_devices_take_less_at_once_and_checksums_and_know_less_of_files(
    adb_server: Adb, tmp_path: Path, version: int, max_payload: int
) -> None:
    data = os.urandom(500_000)
    (tmp_path / "there").write_bytes(data)
    with AdbDevice(Settings(version=version, max_payload=max_payload, features=())) as old:
        adb_server.connect(old.serial)
        adb = adb_server.on(old.serial)
        adb.ok("push", tmp_path / "there", "/data/local/tmp/d/f")
        adb.ok("pull", "/data/local/tmp/d", tmp_path / "back")
        assert adb.run("pull", "/data/local/tmp/absent", tmp_path).returncode == 1
    assert (tmp_path / "back" / "f").read_bytes() == data


def test_a_link_is_pushed_as_what_it_points_to_and_listed(adb: Adb, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("content")
    adb.ok("push", tmp_path / "f", "/data/local/tmp/listed/f")
    adb.ok("shell", "ln -s f /data/local/tmp/listed/link")
    listed = [line.split() for line in adb.ok("ls", "/data/local/tmp/listed").splitlines()]
    names = {words[-1]: int(words[0], 16) >> 12 for words in listed}
    assert names == {".": 0o4, "..": 0o4, "f": 0o10, "link": 0o12}
    adb.ok("pull", "/data/local/tmp/listed/link", tmp_path / "back")
    assert (tmp_path / "back").read_text() == "content"


def test_a_terminal_is_one(adb: Adb) -> None:
    done = adb.run("shell", "-tt", "tty; exit 4", stdin=b"")
    assert done.returncode == 4
    assert b"/dev/pts/" in done.stdout


def test_it_is_a_user_build(adb: Adb) -> None:
    assert "production builds" in adb.ok("root")
    assert adb.shell("getprop ro.build.type") == "user\n"
    assert adb.shell("id -u").strip() == "2000"


def test_what_is_under_storage_is_fuse_and_data_is_not(adb: Adb, tmp_path: Path) -> None:
    if not has_fuse():
        pytest.skip("no /dev/fuse that one may use")
    kinds = {
        words[4]: words[words.index("-") + 1]
        for words in map(str.split, adb.shell("cat /proc/self/mountinfo").splitlines())
    }
    assert kinds["/storage/emulated"] == "fuse"
    assert kinds["/data"] not in ("fuse", "tmpfs", "overlay")
    assert adb.shell("stat -f -c %t /sdcard/").strip() == "65735546"  # FUSE_SUPER_MAGIC
    data = os.urandom(700_000)
    (tmp_path / "f").write_bytes(data)
    adb.ok("push", tmp_path / "f", "/sdcard/Download/f")
    adb.ok("shell", "cd /sdcard/Download && mv f g && mkdir d && cp g d/f && cmp g d/f && rm -r d")
    adb.ok("pull", "/sdcard/Download/g", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data
    assert adb.shell("cd /sdcard/Download; chmod 777 g; ./g; ls").splitlines()[1:] == ["g"]


def test_the_device_ends_with_all_its_processes(adb_server: Adb) -> None:
    with AdbDevice() as device:
        adb_server.connect(device.serial)
        adb_server.on(device.serial).ok("shell", "sleep 1000 </dev/null >/dev/null 2>&1 &")
        wait_for(lambda: "sleep" in device.names().values())
        pids = device.processes()
        base = device.layout.base
    assert not any(is_alive(pid) for pid in pids)
    assert not base.exists()
    assert str(base) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize("whom", ["test", "supervisor"])
def test_nothing_is_left_of_a_device_whose_test_is_killed(whom: str) -> None:
    program = (
        "import sys, signal; sys.path.insert(0, sys.argv[1])\n"
        "from adb_device import AdbDevice\n"
        "d = AdbDevice().start()\n"
        "print(d.layout.base, d._process.pid, *d.processes(), flush=True)\n"
        "signal.pause()"
    )
    tests = str(Path(__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, "-c", program, tests], stdout=subprocess.PIPE, text=True
    ) as test:
        assert test.stdout is not None
        base, *numbers = test.stdout.readline().split()
        pids = [int(n) for n in numbers]
        assert len(pids) >= 3
        os.kill(test.pid if whom == "test" else pids[0], signal.SIGKILL)
        wait_for(lambda: not any(is_alive(pid) for pid in pids[1:]))
        if whom == "test":
            wait_for(lambda: not Path(base).exists())
        else:  # nobody is left to remove its files but the next device
            test.kill()
            test.wait()
            with AdbDevice():
                assert not Path(base).exists()


def test_a_device_starts_within_seconds(adb_server: Adb) -> None:
    took = []
    for _ in range(3):
        start = time.monotonic()
        with AdbDevice() as device:
            adb_server.connect(device.serial)
            took.append(time.monotonic() - start)
    assert min(took) < 10.0  # 0.3 on a machine at rest
