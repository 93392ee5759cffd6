"""A link over the real adb client, to a made-up device: programs, channels, files."""

# ruff: noqa: F811 - fixtures are imported, and are what arguments are named after
from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from adb_device import AdbDevice, why_unavailable
from adb_device_parts import Adb
from adb_link_fixtures import (  # noqa: F401
    device,
    link,
    nothing_is_left_running,
    server,
    shaky,
    shared,
    watchful,
)
from adb_link_parts import ODD_NAME, TMP, clients, config, taken
from hypothesis import given, settings
from hypothesis import strategies as st
from launcher_parts import wait_for

from harness.errors import DeviceError
from harness.targets.adb import AdbLink
from harness.targets.link import Finished, LinkLost

pytestmark = pytest.mark.skipif(
    why_unavailable() is not None, reason=f"no made-up adb device: {why_unavailable()}"
)


# --- programs ------------------------------------------------------------------------------------


def test_a_device_tells_who_it_is(link: AdbLink, shared: AdbDevice) -> None:
    assert (link.serial, link.model) == (shared.serial, "Pixel T")


def test_arguments_and_input_arrive_as_they_are(link: AdbLink) -> None:
    odd = [ODD_NAME, "", " ", "-n", "$HOME", "\n", "\udc80", "x" * 30_000, "%s\\n", "'" * 3000]
    script = 'for a; do printf "%s\\0" "$a"; done; cat'
    data = bytes(range(256)) * 2000
    done = link.call(["sh", "-c", script, "sh", *odd], timeout_s=120, stdin=data)
    sent = b"".join(a.encode("utf-8", "surrogateescape") + b"\0" for a in odd)
    assert done == Finished(0, sent + data, b"")


@settings(max_examples=25, deadline=None)
@given(
    words=st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\0", b"\n")), max_size=4),
    data=st.binary(max_size=300),
)
def test_any_arguments_and_input_arrive(server: Adb, words: list[bytes], data: bytes) -> None:
    argv = [w.decode("utf-8", "surrogateescape") for w in words]
    script = 'for a; do printf "%s\\0" "$a"; done; cat'
    done = LINK(server).call(["sh", "-c", script, "sh", *argv], timeout_s=120, stdin=data)
    assert done == Finished(0, b"".join(w + b"\0" for w in words) + data, b"")


_LINKS: dict[int, AdbLink] = {}


def LINK(server: Adb) -> AdbLink:  # noqa: N802
    """A link for hypothesis, which wants no fixture that is made anew for each test."""
    return _LINKS[server.port]


@pytest.fixture(scope="module", autouse=True)
def _one_link(server: Adb, shared: AdbDevice) -> Iterator[None]:
    _LINKS[server.port] = AdbLink(config(shared.serial))
    yield
    _LINKS.pop(server.port).close()


def test_a_mebibyte_of_output_comes_whole_on_both_streams(link: AdbLink) -> None:
    done = link.call(
        ["sh", "-c", "head -c 1048576 /dev/zero; head -c 1048576 /dev/zero >&2"], timeout_s=120
    )
    assert (done.code, len(done.stdout), len(done.stderr)) == (0, 1 << 20, 1 << 20)


def test_exit_codes_and_signals(link: AdbLink) -> None:
    assert [link.call(["sh", "-c", f"exit {n}"], timeout_s=90).code for n in (0, 1, 137, 255)] == [
        0, 1, 137, 255,
    ]  # fmt: skip
    for number in (6, 9, 11, 15):
        # not the shell itself: mksh makes an exit code of some that it gets
        script = f"(sleep 0.1; kill -{number} $$) & exec sleep 900"
        assert link.call(["sh", "-c", script], timeout_s=90) == Finished(-number, b"", b"")
    assert link.call(["no such program"], timeout_s=90).code == 127


def test_a_program_that_speaks_like_the_client_is_no_lost_link(link: AdbLink) -> None:
    for words in (
        "error: closed",
        "adb: device offline",
        f"error: device '{link.serial}' not found",
    ):
        done = link.call(["sh", "-c", 'echo "$1" >&2; exit 1', "sh", words], timeout_s=90)
        assert done == Finished(1, b"", words.encode() + b"\n")


def test_a_program_that_does_not_end_is_ended(link: AdbLink, shared: AdbDevice) -> None:
    began = time.monotonic()
    with pytest.raises(DeviceError, match=r"sh on .* has not ended within 5 s") as caught:
        link.call(["sh", "-c", "sleep 1001 & sleep 1002; true"], timeout_s=5)
    assert not isinstance(caught.value, LinkLost)
    assert time.monotonic() - began < 60
    wait_for(lambda: "sleep" not in shared.names().values())


@pytest.mark.slow
@pytest.mark.parametrize("what", ["call", "open", "put"])
def test_nothing_goes_on_when_we_are_killed(
    server: Adb, shared: AdbDevice, tmp_path: Path, what: str
) -> None:
    with (tmp_path / "f").open("wb") as file:
        file.truncate(20_000_000_000)  # takes longer than the test, and no room here
    program = (
        "import sys, time; from pathlib import Path; from adb_link_parts import *; "
        "from harness.targets.adb import AdbLink\n"
        "serial, what, file = sys.argv[1:]\n"
        "link = AdbLink(config(serial)); print('ready', flush=True)\n"
        "if what == 'call': link.call(['sh', '-c', 'sleep 1001; true'], timeout_s=9099)\n"
        "if what == 'put': link.put(Path(file), TMP + '/big')\n"
        "channel = link.open(['sh', '-c', 'sleep 1001; true']); time.sleep(999)\n"
    )
    paths = [str(Path(__file__).parents[n]) for n in (2, 1, 0)]
    with subprocess.Popen(
        [sys.executable, "-c", program, shared.serial, what, str(tmp_path / "f")],
        stdout=subprocess.PIPE,
        env=server.environment | {"PYTHONPATH": ":".join(paths)},
    ) as ours:
        assert ours.stdout is not None
        assert ours.stdout.readline() == b"ready\n"
        there = shared.path(f"{TMP}/big")
        if what == "put":
            wait_for(lambda: there.exists() and there.stat().st_size > 1_000_000)
        else:
            wait_for(lambda: "sleep" in shared.names().values())
        theirs = psutil.Process(ours.pid).children(recursive=True)
        assert theirs
        ours.kill()
    wait_for(lambda: not any(c.is_running() for c in theirs))
    wait_for(lambda: "sleep" not in shared.names().values())

    def stays() -> bool:
        size = there.stat().st_size
        time.sleep(0.5)
        return there.stat().st_size == size

    if what == "put":
        wait_for(stays)  # what was on its way still arrives
        there.unlink()


def test_a_slow_program_is_waited_for_while_the_device_answers(link: AdbLink) -> None:
    assert link.call(["sh", "-c", "sleep 2; echo done"], timeout_s=90).stdout == b"done\n"


def test_what_a_program_leaves_behind_does_not_hold_us(link: AdbLink, shared: AdbDevice) -> None:
    began = time.monotonic()
    done = link.call(["sh", "-c", "setsid sleep 500 & echo started"], timeout_s=120)
    assert done == Finished(0, b"started\n", b"")
    assert time.monotonic() - began < 60
    assert "setsid" in shared.names().values()  # toybox's, which is its own sleep
    link.call(["pkill", "setsid"], timeout_s=90)


def test_input_that_nobody_reads_is_no_harm(link: AdbLink) -> None:
    assert link.call(["true"], timeout_s=120, stdin=b"x" * 5_000_000).code == 0


# --- channels ------------------------------------------------------------------------------------


def test_lines_go_there_and_back(link: AdbLink, shared: AdbDevice) -> None:
    channel = link.open(["cat"])
    assert channel.lines() == []
    lines = [b"one", b"", b"\xff\x00two", b"x" * 300_000]
    for line in lines:
        channel.send(line)
    assert taken(channel, 4) == lines
    channel.close()
    wait_for(lambda: "cat" not in shared.names().values())
    assert channel.lines() == []
    channel.close()


def test_the_end_of_a_program_is_told_once_after_its_lines(link: AdbLink) -> None:
    words = "x" * 5000  # by way of standard input
    channel = link.open(["sh", "-c", "echo $#; echo err >&2; printf half; exit 3", "sh", words])
    assert taken(channel, 1) == [b"1"]
    lost = 0
    deadline = time.monotonic() + 120
    while not lost and time.monotonic() < deadline:
        try:
            assert channel.lines() == []
        except LinkLost:
            lost += 1
    assert lost == 1
    assert channel.lines() == []
    with pytest.raises(LinkLost):
        channel.send(b"x")
    channel.close()


def test_two_channels_and_a_call_at_once(link: AdbLink) -> None:
    first, second = link.open(["cat"]), link.open(["cat"])
    first.send(b"a")
    second.send(b"b")
    assert link.call(["echo", "c"], timeout_s=90).stdout == b"c\n"
    assert (taken(first, 1), taken(second, 1)) == ([b"a"], [b"b"])
    link.close()


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 65_536, 30_000_001])
def test_a_file_goes_there_and_back(link: AdbLink, tmp_path: Path, size: int) -> None:
    source, back = (
        tmp_path / os.fsdecode(ODD_NAME.encode("utf-8", "surrogateescape")),
        tmp_path / "b",
    )
    source.write_bytes(os.urandom(size))
    source.chmod(0o755)
    seen: list[tuple[int, int]] = []
    there = f"{TMP}/{ODD_NAME}"
    link.put(source, there, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (size, size)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert link.call(["test", "-x", there], timeout_s=90).code == 0
    link.get(there, back)
    assert back.read_bytes() == source.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([source.name, "b"])
    assert link.call(["sh", "-c", f"rm {TMP}/a*; ls {TMP} | grep -c hit"], timeout_s=90).stdout == (
        b"0\n"
    )


def test_a_symlink_here_stands_for_its_file(link: AdbLink, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    (tmp_path / "link").symlink_to("file")
    link.put(tmp_path / "link", f"{TMP}/from-link")
    assert link.call(["cat", f"{TMP}/from-link"], timeout_s=90).stdout == b"content"
    assert link.call(["test", "-L", f"{TMP}/from-link"], timeout_s=90).code == 1


@pytest.mark.parametrize(
    ("destination", "words"),
    [
        (TMP, "it is a directory there"),
        (f"{TMP}/", "it is a directory there"),
        (f"{TMP}/absent/file", "its directory does not exist"),
        ("/system/bin/file", "Read-only file system"),
        ("/data/file", "Permission denied"),
        ("relative", "must begin with /"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused(
    link: AdbLink, tmp_path: Path, destination: str, words: str
) -> None:
    (tmp_path / "f").write_bytes(b"x" * 200_000)
    with pytest.raises(DeviceError, match=words) as caught:
        link.put(tmp_path / "f", destination)
    assert not isinstance(caught.value, LinkLost)
    assert destination in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_here_is_said(link: AdbLink, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"cannot read .*absent: No such file"):
        link.put(tmp_path / "absent", f"{TMP}/f")


def test_a_full_device_is_said(device: AdbDevice, shaky: AdbLink, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 3_000_000)
    device.fail_sync_write(20)
    with pytest.raises(DeviceError, match=r"cannot write .*No space left on device") as caught:
        shaky.put(tmp_path / "f", f"{TMP}/f")
    assert not isinstance(caught.value, LinkLost)
    assert "\n" not in str(caught.value)
    shaky.put(tmp_path / "f", f"{TMP}/f")


def test_a_device_that_really_is_full_is_said(server: Adb, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(os.urandom(100_000_000))
    with AdbDevice(data_bytes=48 << 20) as device:
        with contextlib.closing(AdbLink(config(device.serial))) as link:
            with pytest.raises(DeviceError, match=r"cannot write .*No space left on device") as e:
                link.put(tmp_path / "f", f"{TMP}/f")
            assert not isinstance(e.value, LinkLost)
            (tmp_path / "f").write_bytes(b"x")
            link.put(tmp_path / "f", f"{TMP}/f")
        server.run("disconnect", device.serial)


def test_what_was_there_is_replaced_and_no_progress(
    device: AdbDevice, shaky: AdbLink, tmp_path: Path
) -> None:
    (tmp_path / "old").write_bytes(b"o" * 30_000_000)
    (tmp_path / "new").write_bytes(b"n" * 20_000_000)
    shaky.put(tmp_path / "old", f"{TMP}/f")
    device.change(delay_s=0.1)
    seen: list[int] = []
    shaky.put(tmp_path / "new", f"{TMP}/f", lambda done, _: seen.append(done))
    assert len(seen) > 2
    assert seen == sorted(seen)
    assert seen[0] < 20_000_000
    assert shaky.call(["head", "-c", "3", f"{TMP}/f"], timeout_s=90).stdout == b"nnn"


def test_a_file_that_cannot_be_got_is_said(link: AdbLink, tmp_path: Path) -> None:
    back = tmp_path / "back"
    for source in (f"{TMP}/absent", TMP):
        with pytest.raises(DeviceError, match=r"cannot read .* there is no such file"):
            link.get(source, back)
    link.call(["sh", "-c", f"echo x > {TMP}/closed; chmod 0 {TMP}/closed"], timeout_s=90)
    with pytest.raises(DeviceError, match=r"Permission denied") as caught:
        link.get("/data/misc/made_up/../../local/tmp/closed", back)
    assert not isinstance(caught.value, LinkLost)
    link.call(["sh", "-c", f"echo x > {TMP}/open"], timeout_s=90)
    with pytest.raises(DeviceError, match=r"cannot write .*/nowhere/back") as caught:
        link.get(f"{TMP}/open", tmp_path / "nowhere" / "back")
    assert not isinstance(caught.value, LinkLost)
    assert list(tmp_path.iterdir()) == []


def test_storage_behind_fuse_is_refused(link: AdbLink, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    for there in ("/sdcard/f", "/storage/emulated/0/f"):
        with pytest.raises(
            DeviceError, match=r"it is FUSE, .*use a directory below /data/local/tmp"
        ):
            link.put(tmp_path / "f", there)


def test_a_signal_to_us_does_not_reach_the_client(link: AdbLink) -> None:
    """Ctrl-C at a terminal goes to a whole process group; a client is in its own."""
    channel = link.open(["cat"])
    # what it is started through becomes it, and has no words for a moment
    (client,) = wait_for(clients)
    assert os.getpgid(client.pid) == client.pid != os.getpgid(0)
    channel.close()
