"""The device's lock on this machine: one campaign at a time, and what the second one is told."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.device.claim import claim, owner_of
from harness.errors import DeviceError
from harness.targets.local import LocalTarget
from harness.targets.lockfile import busy, open_lock
from harness.targets.target import DeviceBusy


def target(lock: Path) -> LocalTarget:
    return LocalTarget("bench", str(lock))


def test_the_second_is_told_who_has_it_and_since_when(tmp_path: Path) -> None:
    first, second = target(tmp_path / "lock"), target(tmp_path / "lock")
    first.claim(owner_of(tmp_path / "runs" / "one"))
    with pytest.raises(DeviceBusy) as caught:
        second.claim(owner_of(tmp_path / "runs" / "two"))
    text = str(caught.value)
    assert text.startswith("bench: another campaign measures there (")
    assert f"process {os.getpid()}, {tmp_path}/runs/one, since " in text
    assert "session.wait_for_device_s" in text
    first.close()
    second.claim(owner_of(tmp_path / "runs" / "two"))
    second.close()
    assert (tmp_path / "lock").read_bytes() == b""


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from harness.device.claim import owner_of;"
        "from harness.targets.local import LocalTarget;"
        "LocalTarget('bench', sys.argv[1]).claim(owner_of(Path('x'))); print('held', flush=True);"
        "time.sleep(60)"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "lock")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        mine = target(tmp_path / "lock")
        with pytest.raises(DeviceBusy, match=f"process {holder.pid}"):
            mine.claim(owner_of(tmp_path))
        holder.kill()
        holder.wait()
    mine.claim(owner_of(tmp_path))
    mine.close()


def test_who_only_looks_is_not_taken_for_a_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the launcher does at any moment: it has the lock until we have waited once."""
    with (tmp_path / "lock").open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        monkeypatch.setattr(time, "sleep", lambda _: fcntl.flock(looking, fcntl.LOCK_UN))
        mine = target(tmp_path / "lock")
        mine.claim(owner_of(tmp_path))
        mine.close()


def test_waiting_ends_when_the_device_is_free(tmp_path: Path) -> None:
    first, second = target(tmp_path / "lock"), target(tmp_path / "lock")
    first.claim(owner_of(tmp_path))
    said: list[str] = []
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            first.close()

    claim(second, owner_of(tmp_path), wait_s=60.0, say=said.append, nap=nap)
    assert len(naps) == 3
    assert "waiting for it, 1 min at most" in said[0]
    assert "bench: is free after" in said[1]
    second.close()


def test_waiting_is_bounded(tmp_path: Path) -> None:
    first, second = target(tmp_path / "lock"), target(tmp_path / "lock")
    first.claim(owner_of(tmp_path))
    now = [0.0]

    def nap(seconds: float) -> None:
        now[0] += seconds

    with pytest.raises(DeviceBusy):
        claim(
            second,
            owner_of(tmp_path),
            wait_s=5.0,
            say=lambda _line: None,
            nap=nap,
            clock=lambda: now[0],
        )
    assert now[0] == 5.0
    first.close()


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(DeviceError, match=r"lock: the device's lock cannot be opened: .*device_lo"):
        open_lock(tmp_path / "lock")
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize(
    "content",
    [b"my thesis\n", b" ", b"{}", b"[]", b"{", b'["owner"]', b"\xff", bytes(70_000), b"[" * 60_000],
)
def test_somebody_elses_file_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    before = file.stat()
    mine = target(file)
    with pytest.raises(DeviceError, match=r"device_lock: .*/file is not a device's lock but") as e:
        mine.claim(owner_of(tmp_path))
    assert not isinstance(e.value, DeviceBusy)
    assert "\n" not in str(e.value)
    mine.close()
    assert file.read_bytes() == content
    assert (file.stat().st_mtime_ns, file.stat().st_mode) == (before.st_mtime_ns, before.st_mode)
    file.write_bytes(b"")  # and it is not locked any more
    mine.claim(owner_of(tmp_path))
    mine.close()


@pytest.mark.parametrize("content", [b"", bytes(99), b'{"owner": 1}', b'{"owner":{"token":"t"}}\n'])
def test_what_a_killed_holder_left_is_overwritten(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lock").write_bytes(content)
    mine = target(tmp_path / "lock")
    mine.claim(owner_of(tmp_path / "runs" / "one"))
    assert json.loads((tmp_path / "lock").read_bytes())["pid"] == os.getpid()
    mine.close()
    assert (tmp_path / "lock").read_bytes() == b""


def test_a_place_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"absent/lock: .*target\.device_lock=PATH"):
        target(tmp_path / "absent" / "lock").claim(owner_of(tmp_path))


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'{"owner": {}}', b'{"owner": 3}'])
def test_a_lock_that_says_nothing_is_still_held(content: bytes) -> None:
    text = str(busy("bench", content, time.monotonic()))
    assert text.startswith("bench: another campaign measures there (its lock does not say whose)")


def test_the_age_is_by_the_devices_own_clock() -> None:
    owner = {"user": "u", "host": "h", "pid": 1, "directory": "/d"}
    content = json.dumps({"owner": owner, "since_monotonic_ms": 10_000}).encode()
    assert "u@h, process 1, /d, since 1 min 30 s)" in str(busy("bench", content, 100.0))
    assert "u@h, process 1, /d)" in str(busy("bench", content, None))
