"""One campaign has the device: the process that holds its lock there, as real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from launcher_parts import is_alive, open_files, wait_for
from verb_parts import NOBODY, Attendance, Board, for_everyone, locked, needs_root, now_ms

pytestmark = pytest.mark.slow  # the first test builds the launcher


LEASE_S = 4.0  # and nobody here takes as long to give a sign of life
BUSY_S = 20.0  # on a machine that is


def token_in(notice: dict[str, Any]) -> str:
    return notice["owner"]["token"]


def test_the_lock_says_whose_it_is(board: Board) -> None:
    before = now_ms()
    mine = board.hold("mine")
    assert mine == {"held": True, "pid": mine["pid"]}
    says = json.loads(board.device_lock.read_text())
    assert says["owner"] == {"token": "mine", "host": "this one"}
    assert says["pid"] == mine["pid"]
    assert before <= says["since_monotonic_ms"] <= now_ms()
    assert abs(says["since_unix_s"] - time.time()) < 60
    assert board.device_lock.stat().st_mode & 0o777 == 0o666
    time.sleep(0.3)
    other = board.hold("other's", code=7)
    assert (other["held"], other["by"]) == (False, says)
    assert 0.3 <= other["age_s"] < 60
    assert json.loads(board.device_lock.read_text()) == says
    assert is_alive(mine["pid"])


def test_of_many_who_want_it_one_gets_it(board: Board) -> None:
    tokens = [f"campaign {n}" for n in range(24)]
    asking = [
        subprocess.Popen(
            [board.launcher, *map(str, board.hold_args(token, 300))], stdout=subprocess.PIPE
        )
        for token in tokens
    ]
    answers = [json.loads(process.communicate(timeout=300)[0]) for process in asking]
    board.pids += [answer["pid"] for answer in answers if answer["held"]]
    assert sorted(process.returncode for process in asking) == [0] + [7] * 23
    winner = tokens[[answer["held"] for answer in answers].index(True)]
    for answer in answers:
        assert answer["held"] or token_in(answer["by"]) == winner


def test_the_same_campaign_finds_its_lock_held(board: Board) -> None:
    first = board.hold("mine", lease_s=LEASE_S)
    until = time.monotonic() + 1.5 * LEASE_S
    while time.monotonic() < until:  # asking again is a sign of life
        assert board.hold("mine", lease_s=LEASE_S)["pid"] == first["pid"]
        time.sleep(0.2)
    wait_for(lambda: not is_alive(first["pid"]))


def test_the_lock_ends_with_the_lease(board: Board) -> None:
    began = time.monotonic()
    pid = board.hold("mine", lease_s=1)["pid"]
    wait_for(lambda: not is_alive(pid), 1 + BUSY_S)
    assert time.monotonic() - began >= 1
    assert not board.is_locked(board.device_lock)
    assert board.device_lock.read_text() == ""
    board.hold("other's")


def test_beats_prolong_it(board: Board) -> None:
    pid = board.hold("mine", lease_s=LEASE_S)["pid"]
    host = Attendance(board)
    until = time.monotonic() + 1.5 * LEASE_S
    while time.monotonic() < until:
        host.beat()
        time.sleep(0.1)
    assert is_alive(pid)
    host.finish()
    wait_for(lambda: not is_alive(pid), LEASE_S + BUSY_S)


def test_it_is_not_lost_while_the_cell_still_runs(board: Board) -> None:
    with locked(board.cell_lock):
        pid = board.hold("mine", lease_s=0.3)["pid"]
        time.sleep(1.2)
        assert is_alive(pid)
        assert token_in(board.hold("other's", code=7)["by"]) == "mine"
    wait_for(lambda: not is_alive(pid), BUSY_S)


def test_a_campaign_that_comes_back_keeps_it(board: Board) -> None:
    with locked(board.cell_lock):
        pid = board.hold("mine", lease_s=LEASE_S)["pid"]
        time.sleep(LEASE_S + 0.5)  # over, but for the cell
        assert board.hold("mine", lease_s=LEASE_S)["pid"] == pid
    time.sleep(1)  # a look at the cell's lock takes a quarter of that
    assert is_alive(pid)
    wait_for(lambda: not is_alive(pid), LEASE_S + BUSY_S)


def test_who_comes_back_at_the_last_moment_has_it_or_takes_it(board: Board) -> None:
    def comes_back(attempt: int) -> None:
        mine, lease_s = Board(board.launcher, board.root / str(attempt)), LEASE_S / 2
        mine.root.mkdir()
        try:
            mine.hold("mine", lease_s=lease_s)
            time.sleep(lease_s - 0.01 + attempt * 0.002)
            pid = mine.hold("mine", lease_s=2 * LEASE_S)["pid"]  # the first one, or a new one
            time.sleep(0.1)
            assert is_alive(pid)
            assert json.loads(mine.device_lock.read_text())["pid"] == pid
            assert mine.release("mine")["released"]
        finally:
            mine.end()

    with ThreadPoolExecutor(12) as at_once:
        list(at_once.map(comes_back, range(12)))


def test_what_a_killed_holder_leaves_behind_binds_nobody(board: Board) -> None:
    pid = board.hold("mine")["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not board.is_locked(board.device_lock))
    assert "mine" in board.device_lock.read_text()
    assert board.release("mine") == {"released": True, "by": None}
    other = board.hold("other's")
    assert json.loads(board.device_lock.read_text())["pid"] == other["pid"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"owner": 1}', "\0" * 99, '{"owner":{"token":1}}']
)
def test_a_lock_that_says_nonsense_is_a_lock_all_the_same(board: Board, text: str) -> None:
    with locked(board.device_lock):
        board.device_lock.write_text(text)
        answer = board.hold("mine", code=7)
        assert answer["held"] is False
        assert answer["age_s"] is None
        assert answer["by"] is None or answer["by"] == json.loads(text)
    if text not in ("{", "[]"):  # these may be somebody's own
        board.hold("mine")
        assert token_in(json.loads(board.device_lock.read_text())) == "mine"


@pytest.mark.parametrize("content", [b"my thesis\n", b"{}", b"[]", b"{", b"\xff", bytes(70_000)])
def test_somebody_elses_file_is_refused_and_left_as_it_is(board: Board, content: bytes) -> None:
    board.device_lock.write_bytes(content)
    before = board.device_lock.stat()
    error = board.hold("mine", code=1)["error"]
    assert error == (
        f"moe-launcher: {board.device_lock} is not a device's lock but a file with other content, "
        "which is left as it is; name another file (the harness: target.device_lock), or remove "
        "this one if nobody needs it"
    )
    assert board.device_lock.read_bytes() == content
    assert board.device_lock.stat().st_mtime_ns == before.st_mtime_ns
    assert board.device_lock.stat().st_mode == before.st_mode
    assert not board.is_locked(board.device_lock)
    assert board.release("mine") == {"released": True, "by": None}
    assert board.device_lock.read_bytes() == content


def test_only_the_owner_releases_it(board: Board) -> None:
    assert board.release("mine") == {"released": True, "by": None}
    pid = board.hold("mine")["pid"]
    refused = board.release("other's")
    assert (refused["released"], refused["by"]["pid"]) == (False, pid)
    assert is_alive(pid)
    began = time.monotonic()
    assert board.release("mine") == {"released": True, "by": None}
    assert time.monotonic() - began < BUSY_S  # not after its lease of 30 s
    assert board.device_lock.read_text() == ""
    board.hold("other's")


def test_a_holder_outlives_who_started_it_and_hears_a_polite_word(board: Board) -> None:
    argv = [board.launcher, *map(str, board.hold_args("mine", 30))]
    shell = ["sh", "-c", '"$@"; kill -HUP 0', "sh", *argv]
    done = subprocess.run(shell, capture_output=True, check=False, start_new_session=True)
    pid = json.loads(done.stdout)["pid"]
    board.pids.append(pid)
    assert is_alive(pid)
    ours = {Path("/dev/null"), board.root / "hold.txt", board.device_lock}
    # in a moment: it closes the pipe after the word that it is ready
    wait_for(lambda: open_files(pid) == ours)
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not is_alive(pid))
    assert board.device_lock.read_text() == ""


def test_places_that_cannot_be_a_lock_are_refused(board: Board, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("content")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    for lock, words in (
        (tmp_path / "link", "it is a symbolic link"),
        (tmp_path / "no" / "lock", "No such file or directory"),
        (tmp_path, "it is not a regular file"),
    ):
        assert words in board.hold("mine", lock=lock, code=5)["error"]
    assert (tmp_path / "precious").read_text() == "content"
    assert "no/log" in board.hold("mine", log=tmp_path / "no/log", code=5)["error"]
    assert not board.is_locked(board.device_lock)
    assert board.device_lock.read_text() == ""


def test_an_owner_without_a_token_is_refused(board: Board) -> None:
    args = [str(arg) for arg in board.hold_args("mine", 30)]
    place = args.index("--owner") + 1
    for owner in ("mine", "[]", "{}", '{"token": ""}', '{"token": 1}', '{"token": "x"', "{" * 99):
        args[place] = owner
        assert '"token"' in board.call(*args, code=2)["error"]
    assert not board.device_lock.exists()


@needs_root
def test_users_of_one_machine_share_the_lock(board: Board, tmp_path: Path) -> None:
    for_everyone(tmp_path)
    shared, theirs = tmp_path / "tmp", tmp_path / "theirs"
    for place in (shared, theirs):
        place.mkdir()
        place.chmod(0o1777)
    other = Board(board.launcher, theirs)
    other.device_lock = board.device_lock = shared / "lock"
    args = other.hold_args("theirs", 30)
    pid = board.call(*args, user=NOBODY)["pid"]
    other.pids.append(pid)
    assert board.device_lock.stat().st_uid == NOBODY
    assert token_in(board.hold("mine", code=7)["by"]) == "theirs"
    released = board.call(
        *("release", "--lock", board.device_lock, "--token", "theirs"), user=NOBODY
    )
    assert released["released"]
    mine = board.hold("mine")  # in the other's file
    refused = board.call(*args, user=NOBODY, code=7)
    assert refused["by"]["pid"] == mine["pid"]
    other.end()


@needs_root
def test_a_directory_that_is_not_ours_to_write_is_one_clear_line(
    board: Board, tmp_path: Path
) -> None:
    for_everyone(tmp_path)
    args = [*board.hold_args("mine", 30)]
    error = board.call(*args, user=NOBODY, code=5)["error"]
    assert error == f"moe-launcher: cannot use {board.device_lock} as a lock: Permission denied"
