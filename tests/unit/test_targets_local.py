"""Put, get and run on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.errors import DeviceError
from harness.targets.local import LocalTarget
from harness.targets.target import PageCache

TARGET = LocalTarget()


def wait_until(condition: object, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def test_a_file_is_put_once_and_never_onto_itself(tmp_path: Path) -> None:
    source, there = tmp_path / "a", tmp_path / "b"
    source.write_text("x")
    TARGET.put(source, there)
    TARGET.put(source, source)
    assert there.read_text() == source.read_text() == "x"
    with pytest.raises(DeviceError, match=r"cannot copy .*absent"):
        TARGET.put(tmp_path / "absent", there)


def test_what_lies_elsewhere_is_got(tmp_path: Path) -> None:
    work, cell = tmp_path / "work", tmp_path / "cell"
    work.mkdir()
    cell.mkdir()
    (work / "result.json").write_text("{}")
    TARGET.get(work, cell)
    assert (cell / "result.json").read_text() == "{}"
    TARGET.get(cell, cell)


def test_a_program_runs_by_itself_with_its_words_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    argv = ["sh", "-c", "echo out; echo err >&2; exit 7"]
    running = TARGET.run(argv, log=log, lock=tmp_path / "lock", tails={})
    wait_until(lambda: running.poll() is not None)
    assert running.poll() == 7
    assert log.read_text() == "out\nerr\n"


def test_the_lock_lives_as_long_as_any_descendant(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert not TARGET.is_locked(lock)
    argv = ["sh", "-c", "sleep 600 & exit 0"]
    running = TARGET.run(argv, log=tmp_path / "log", lock=lock, tails={})
    wait_until(lambda: running.poll() == 0)
    assert TARGET.is_locked(lock)
    TARGET.end_holders(lock)
    wait_until(lambda: not TARGET.is_locked(lock))


def test_the_lock_outlives_the_process_that_started_the_program(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from harness.targets.local import LocalTarget
d = Path({str(tmp_path)!r})
LocalTarget().run(["sleep", "60"], log=d / "log", lock=d / "lock", tails={{}})
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert TARGET.is_locked(tmp_path / "lock")
    TARGET.end_holders(tmp_path / "lock")
    wait_until(lambda: not TARGET.is_locked(tmp_path / "lock"))


def test_ending_holders_leaves_others_alone(tmp_path: Path) -> None:
    mine = TARGET.run(["sleep", "60"], log=tmp_path / "log", lock=tmp_path / "mine", tails={})
    other = TARGET.run(["sleep", "60"], log=tmp_path / "log", lock=tmp_path / "other", tails={})
    TARGET.end_holders(tmp_path / "mine")
    wait_until(lambda: mine.poll() is not None)
    assert other.poll() is None
    other.kill()
    assert other.poll() == -9


def test_the_tail_of_a_file_that_may_not_be_there(tmp_path: Path) -> None:
    path = tmp_path / "f"
    assert TARGET.tail(path, 4) == b""
    path.write_bytes(b"0123456789")
    assert TARGET.tail(path, 4) == b"6789"
    assert TARGET.tail(path, 100) == b"0123456789"


def test_files_leave_the_page_cache_even_when_just_written(tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "empty"]
    files[0].write_bytes(os.urandom(1 << 20))
    files[1].write_bytes(b"")
    before = TARGET.evict_page_cache(files)
    if before.after_bytes != 0:
        pytest.skip("this filesystem lives in the page cache")
    assert before == PageCache(1 << 20, 0)
    files[0].read_bytes()
    assert TARGET.evict_page_cache(files) == PageCache(1 << 20, 0)
    with pytest.raises(DeviceError, match=r"cannot evict .*absent.*No such file"):
        TARGET.evict_page_cache([tmp_path / "absent"])
