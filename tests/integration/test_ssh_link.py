"""Programs and files over ssh, with a real sshd on loopback."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ssh_parts import Sshd

from harness.errors import DeviceError
from harness.targets.link import LinkLost
from harness.targets.ssh import SshLink


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    machine = Sshd(tmp_path_factory.mktemp("sshd"), home=os.geteuid() == 0)
    machine.start()
    yield machine
    machine.stop()


@pytest.fixture(scope="module")
def shared(sshd: Sshd) -> Iterator[SshLink]:
    link = SshLink(sshd.config())
    yield link
    link.close()


@pytest.fixture
def link(sshd: Sshd) -> Iterator[SshLink]:
    link = SshLink(sshd.config())
    yield link
    link.close()


def lines_of(channel: object, count: int, seconds: float = 120) -> list[bytes]:
    """The first lines that come."""
    found: list[bytes] = []
    until = time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < until, found
        found += channel.lines()  # type: ignore[attr-defined]
        time.sleep(0.005)
    return found


ARGUMENT = st.text(
    st.characters(exclude_characters="\0", codec="utf-8") | st.sampled_from("'\"\\$`!*?~ \n\t;&|#"),
    max_size=30,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ARGUMENT, min_size=1, max_size=5))
def test_arguments_arrive_as_they_are(shared: SshLink, arguments: list[str]) -> None:
    done = shared.call(["printf", "%s\\0", *arguments], timeout_s=120)
    assert done.code == 0
    assert done.stderr == b""
    assert done.stdout == b"".join(a.encode() + b"\0" for a in arguments)


def test_arguments_execute_nothing(shared: SshLink, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    for text in (
        f"$(touch {mark})",
        f"`touch {mark}`",
        f"'; touch {mark}; '",
        f"\n touch {mark}\n",
    ):
        assert shared.call(["printf", "%s", text], timeout_s=120).stdout == text.encode()
    assert not mark.exists()


def test_arguments_that_are_no_text(shared: SshLink) -> None:
    name = os.fsdecode(b"\xff\xfe x")
    assert shared.call(["printf", "%s", name], timeout_s=120).stdout == b"\xff\xfe x"
    with pytest.raises(DeviceError, match="NUL"):
        shared.call(["printf", "a\0b"], timeout_s=120)
    with pytest.raises(DeviceError, match="too long"):
        shared.call(["printf", "x" * 200_000], timeout_s=120)


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -9 $$", -9), ("kill -TERM $$", -15)],
)
def test_how_it_ended(shared: SshLink, script: str, code: int) -> None:
    assert shared.call(["sh", "-c", script], timeout_s=120).code == code


def test_a_program_that_is_not_there(shared: SshLink) -> None:
    done = shared.call(["/nonesuch"], timeout_s=120)
    assert done.code in (126, 127)
    assert b"nonesuch" in done.stderr


def test_streams_are_apart_binary_and_large(shared: SshLink) -> None:
    data = os.urandom(6 << 20)
    done = shared.call(["sh", "-c", "tee /dev/stderr"], timeout_s=600, stdin=data)
    assert done.stdout == data
    assert done.stderr == data


def test_input_that_nobody_reads(shared: SshLink) -> None:
    assert shared.call(["true"], timeout_s=120, stdin=b"x" * (8 << 20)).code == 0


def test_it_does_not_end_in_time(shared: SshLink) -> None:
    started = time.monotonic()
    with pytest.raises(DeviceError, match=r"did not end within 0.5 s") as e:
        shared.call(["sleep", "60"], timeout_s=0.5)
    assert not isinstance(e.value, LinkLost)
    with pytest.raises(DeviceError, match="did not end"):
        shared.call(["yes"], timeout_s=0.5)
    assert time.monotonic() - started < 40
    assert shared.call(["true"], timeout_s=120).code == 0


def test_what_is_out_of_time_is_killed(shared: SshLink) -> None:
    seconds = f"4{os.getpid()}"  # to know it by
    with pytest.raises(DeviceError, match="did not end"):
        shared.call(["sh", "-c", f"sleep {seconds} & sleep {seconds}"], timeout_s=0.5)

    def is_there(file: Path) -> bool:
        try:
            return file.read_bytes() == f"sleep\0{seconds}\0".encode()
        except OSError:
            return False

    until = time.monotonic() + 120
    while any(map(is_there, Path("/proc").glob("[0-9]*/cmdline"))):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_what_is_left_behind_does_not_hold_the_call(shared: SshLink) -> None:
    started = time.monotonic()
    done = shared.call(["sh", "-c", "sleep 120 & echo out; exit 4"], timeout_s=120)
    assert (done.code, done.stdout) == (4, b"out\n")
    assert time.monotonic() - started < 60


def test_a_conversation(shared: SshLink) -> None:
    channel = shared.open(["sh", "-c", 'echo noise >&2; while read a; do echo "<$a>"; done'])
    assert channel.lines() == []
    for text in (b"one", b"two words", b""):
        channel.send(text)
    assert lines_of(channel, 3) == [b"<one>", b"<two words>", b"<>"]
    channel.close()
    channel.close()


def test_the_end_of_a_conversation(shared: SshLink) -> None:
    channel = shared.open(["sh", "-c", "read a; echo last; printf half; exit 3"])
    channel.send(b"go")
    time.sleep(0.5)
    assert lines_of(channel, 1) == [b"last"]
    for _ in range(2):
        with pytest.raises(LinkLost, match="has ended"):
            lines_of(channel, 1)
    with pytest.raises(LinkLost):
        channel.send(b"more")
    channel.close()


def test_many_lines(shared: SshLink) -> None:
    channel = shared.open(["seq", "200000"])
    assert lines_of(channel, 200000, 600)[-1] == b"200000"


def test_a_conversation_beside_calls_and_files(shared: SshLink, tmp_path: Path) -> None:
    channel = shared.open(["cat"])
    (tmp_path / "a").write_bytes(os.urandom(3 << 20))
    for number in range(5):
        channel.send(str(number).encode())
        assert shared.call(["echo", "x"], timeout_s=120).stdout == b"x\n"
        shared.put(tmp_path / "a", str(tmp_path / f"b{number}"))
    assert lines_of(channel, 5) == [b"0", b"1", b"2", b"3", b"4"]
    channel.close()


def test_a_conversation_in_a_thread_of_its_own(shared: SshLink, tmp_path: Path) -> None:
    """As the heart beats while files are copied."""
    channel = shared.open(["sh", "-c", "while read a; do echo $a; done"])
    (tmp_path / "a").write_bytes(os.urandom(8 << 20))
    stop, came, failed = threading.Event(), [], []

    def beat() -> None:
        try:
            while not stop.wait(0.01):
                channel.send(b"x")
                came.extend(channel.lines())
        except Exception as e:
            failed.append(e)

    thread = threading.Thread(target=beat)
    thread.start()
    for number in range(10):
        shared.put(tmp_path / "a", str(tmp_path / f"b{number}"))
        shared.get(str(tmp_path / f"b{number}"), tmp_path / "c")
        assert (tmp_path / "c").read_bytes() == (tmp_path / "a").read_bytes()
        assert shared.call(["echo", "y"], timeout_s=120).stdout == b"y\n"
    stop.set()
    thread.join()
    channel.close()
    assert failed == []
    assert len(came) > 20
    assert set(came) == {b"x"}


NAME = "a b'\"$(x)\né" + os.fsdecode(b"\xff")


@pytest.mark.parametrize("size", [0, 1, 32768, 3_000_001])
def test_files_there_and_back(shared: SshLink, tmp_path: Path, size: int) -> None:
    source, there = tmp_path / "source", tmp_path / NAME
    source.write_bytes(os.urandom(size))
    told: list[tuple[int, int]] = []
    shared.put(source, str(there), lambda done, total: told.append((done, total)))
    assert there.read_bytes() == source.read_bytes()
    assert told[0] == (0, size)
    assert told[-1] == (size, size)
    shared.get(str(there), tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()


def test_a_transfer_goes_on_where_it_was_cut(shared: SshLink, tmp_path: Path) -> None:
    source, there = tmp_path / "source", tmp_path / "there"
    source.write_bytes(os.urandom(5_000_000))
    there.write_bytes(source.read_bytes()[:3_000_000])
    told: list[int] = []
    shared.put(source, str(there), lambda done, _: told.append(done))
    assert told[0] == 3_000_000
    assert there.read_bytes() == source.read_bytes()


def test_what_is_whole_is_kept_and_what_is_longer_is_not(shared: SshLink, tmp_path: Path) -> None:
    source, there = tmp_path / "source", tmp_path / "there"
    source.write_bytes(b"x" * 1000)
    there.write_bytes(b"y" * 1000)
    shared.put(source, str(there))
    assert there.read_bytes() == b"y" * 1000  # the content is for the caller to check
    there.write_bytes(b"y" * 1001)
    shared.put(source, str(there))
    assert there.read_bytes() == b"x" * 1000


def test_files_that_cannot_be_copied(shared: SshLink, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 100)
    with pytest.raises(DeviceError, match=r"cannot write .*absent/x"):
        shared.put(source, str(tmp_path / "absent" / "x"))
    with pytest.raises(DeviceError, match="Is a directory"):
        shared.put(source, str(tmp_path))
    with pytest.raises(DeviceError, match=r"cannot read .*No such file"):
        shared.get(str(tmp_path / "absent"), tmp_path / "x")
    with pytest.raises(DeviceError, match="cannot read"):
        shared.get(str(tmp_path), tmp_path / "x")
    with pytest.raises(DeviceError, match=r"cannot read .*absent"):
        shared.put(tmp_path / "absent", str(tmp_path / "x"))
    with pytest.raises(DeviceError, match=r"cannot write .*absent"):
        shared.get(str(source), tmp_path / "absent" / "x")
    assert shared.call(["true"], timeout_s=120).code == 0


def test_nothing_is_left_open(shared: SshLink, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")

    def use() -> None:
        shared.call(["cat"], timeout_s=120, stdin=b"x")
        shared.put(tmp_path / "a", str(tmp_path / "b"))
        shared.get(str(tmp_path / "b"), tmp_path / "c")
        channel = shared.open(["cat"])
        channel.send(b"x")
        channel.close()
        with pytest.raises(DeviceError):
            shared.call(["sleep", "5"], timeout_s=0.1)
        with pytest.raises(DeviceError):
            shared.put(tmp_path / "a", str(tmp_path / "absent" / "x"))
        shared.reconnect()

    def left() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    def least() -> tuple[int, int]:
        """Once all threads have ended that are ending: when it has not become less for seconds."""
        found, until = left(), time.monotonic() + 5
        while time.monotonic() < until:
            time.sleep(0.1)
            if (now := left()) < found:
                found, until = now, time.monotonic() + 5
        return found

    use()
    before = least()
    for _ in range(5):
        use()
    assert all(now <= then for now, then in zip(least(), before, strict=True))


def test_killed_and_back(sshd: Sshd, link: SshLink) -> None:
    channel = link.open(["cat"])
    sshd.kill()
    try:
        for attempt in (
            lambda: link.call(["true"], timeout_s=5),
            lambda: link.open(["true"]),
            lambda: lines_of(channel, 1),
            lambda: channel.send(b"x"),
            link.reconnect,
        ):
            with pytest.raises(LinkLost):
                attempt()
    finally:
        sshd.start()
    link.reconnect()
    assert link.call(["echo", "back"], timeout_s=120).stdout == b"back\n"
    with pytest.raises(LinkLost):
        channel.lines()


def test_after_it_was_closed(link: SshLink) -> None:
    link.close()
    link.close()
    with pytest.raises(LinkLost, match="closed"):
        link.call(["true"], timeout_s=5)
