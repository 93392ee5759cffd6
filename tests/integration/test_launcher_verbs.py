"""The launcher's verbs for a host: cells that go on alone, signs of life, what is on a device."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from launcher_parts import MIB, PYTHON, file_text, is_alive, open_files, result_of, wait_for
from verb_parts import Attendance, Board, locked, now_ms

pytestmark = pytest.mark.slow  # the first test builds the launcher

NASTY = ["a b", "\"'`$(touch pwned)`", "two\nlines", "", "--dir", "Füße 日本", os.fsdecode(b"\xff")]


LEASE_S = 4.0  # and nothing here takes as long to begin, or to give a sign of life
BUSY_S = 20.0  # on a machine that is


def until_there(file: Path) -> list[str]:
    """A program that says so and ends, once the file is there."""
    return ["sh", "-c", 'until [ -e "$1" ]; do sleep 0.02; done; echo done', "sh", str(file)]


# --- arguments from a file -----------------------------------------------------------------------


def test_a_command_line_from_a_file_arrives_unchanged(board: Board, tmp_path: Path) -> None:
    show = "import os, sys; print(list(map(os.fsencode, sys.argv[1:])))"
    args = ["run", "--dir", tmp_path / "a 'dir'\n", "--probe-s", "0", "--", PYTHON, "-c", show]
    whole = [os.fsencode(str(arg)) for arg in [*args, *NASTY]]
    (tmp_path / "args").write_bytes(b"".join(arg + b"\0" for arg in whole))
    argv = [board.launcher, "--args-file", tmp_path / "args"]
    done = subprocess.run(argv, capture_output=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    result = result_of(tmp_path / "a 'dir'\n")
    assert result["argv"][3:] == NASTY
    shown = (tmp_path / "a 'dir'\n" / "stdout.txt").read_text().strip()
    assert shown == str(list(map(os.fsencode, NASTY)))
    assert not (tmp_path / "pwned").exists()


def test_half_a_command_line_is_refused(board: Board, tmp_path: Path) -> None:
    (tmp_path / "args").write_bytes(b"run\0--dir\0" + os.fsencode(tmp_path / "cell"))
    error = board.call("--args-file", tmp_path / "args", code=2)["error"]
    assert "does not end with a NUL" in error


# --- a cell that goes on alone -------------------------------------------------------------------


def test_a_detached_cell_outlives_who_started_it(board: Board, tmp_path: Path) -> None:
    args = ["run", "--dir", board.cell, "--probe-s", 0, "--detach", "--log", board.log]
    args += ["--lock", board.cell_lock, "--", *until_there(tmp_path / "go")]
    # a host's shell, which ends at once and takes its session with it
    shell = ["sh", "-c", '"$@"; kill -HUP 0', "sh", board.launcher, *map(str, args)]
    done = subprocess.run(  # that it ends: nothing of ours is open in what goes on
        shell,
        capture_output=True,
        check=False,
        start_new_session=True,
        stdin=subprocess.PIPE,
        timeout=120,
    )
    assert done.stdout.startswith(b'{"pid":')
    board.pids.append(json.loads(done.stdout)["pid"])
    assert board.is_locked(board.cell_lock)
    (tmp_path / "go").touch()
    result = board.result()
    assert (result["status"], result["interrupted"], result["host_lost"]) == ("ok", False, False)
    assert board.log.read_bytes() == b""


def test_the_lock_is_the_launcher_s_alone(board: Board) -> None:
    pid = board.run(PYTHON, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(99)")
    engine = int(wait_for(lambda: file_text(board.cell / "stdout.txt")))
    assert board.cell_lock not in open_files(engine)
    os.kill(pid["pid"], signal.SIGKILL)
    wait_for(lambda: not board.is_locked(board.cell_lock))
    wait_for(lambda: not is_alive(engine))
    assert not (board.cell / "result.json").exists()
    board.run("true")
    assert board.result()["status"] == "ok"


def test_what_fails_at_the_start_is_told_as_if_it_were_not_detached(
    board: Board, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    args: list[Any] = ["run", "--detach", "--dir", tmp_path / "cell", "--log", board.log]
    assert "a program after --" in board.call(*args, code=2)["error"]
    lock = ["--lock", board.cell_lock]
    for change, words in (
        ([*lock, "--dir", tmp_path / "file/cell"], "file/cell: Not a directory"),
        ([*lock, "--log", tmp_path / "no/log"], "no/log: No such file"),
        (["--lock", tmp_path / "no/lock"], "no/lock as a lock: No such file"),
        (["--lock", tmp_path], "as a lock: Is a directory"),
    ):
        answer = board.call(*args, *change, "--", "touch", tmp_path / "ran", code=5)
        assert words in answer["error"]
    assert not (tmp_path / "ran").exists()
    assert not board.is_locked(board.cell_lock)


def test_a_second_cell_leaves_the_first_one_s_files_alone(board: Board) -> None:
    program = until_there(board.root / "go")
    first = board.run(*program)
    assert "holds the lock" in board.run("true", code=7)["error"]
    assert board.is_locked(board.cell_lock)
    (board.root / "go").touch()
    result = board.result()
    assert (result["status"], result["argv"]) == ("ok", program)
    assert not is_alive(first["pid"])


def test_end_asks_the_holder_and_nobody_else(board: Board) -> None:
    host = Attendance(board)
    board.run("sleep", "60")
    assert host.beat()["running"]
    assert board.call("end", board.cell_lock) == {"ended": 1}
    result = board.result()
    assert (result["status"], result["host_lost"]) == ("killed", False)
    assert "SIGTERM" in result["status_detail"]
    assert host.answer()["running"] is False
    assert board.call("end", board.cell_lock) == {"ended": 0}
    assert host.finish() == 0


# --- the host is lost ----------------------------------------------------------------------------

# leaves two in its place: one deaf to TERM in its group, one deaf in a session of its own
DEAF = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() and os.fork() == 0:
    os.setsid()
print(os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("deaf", [False, True])
def test_without_a_host_nothing_is_left_within_seconds(board: Board, deaf: bool) -> None:
    program = [PYTHON, "-c", DEAF] if deaf else ["sh", "-c", "echo $$; exec sleep 60"]
    began = time.monotonic()
    launcher = board.run(*program, options=board.lease(LEASE_S))["pid"]
    count = 3 if deaf else 1
    wait_for(lambda: len(file_text(board.cell / "stdout.txt").split()) == count, LEASE_S)
    ours = [launcher, *map(int, (board.cell / "stdout.txt").read_text().split())]
    wait_for(lambda: not any(map(is_alive, ours)), LEASE_S + BUSY_S)
    assert time.monotonic() - began >= LEASE_S
    result = result_of(board.cell)
    assert (result["status"], result["host_lost"], result["interrupted"]) == ("killed", True, True)
    assert result["status_detail"].startswith(f"the host gave no sign of life for {LEASE_S:g} s; ")
    assert result["strays_left"] == 0


def test_a_host_that_beats_keeps_its_cell(board: Board) -> None:
    board.run("sleep", f"{1.5 * LEASE_S:g}", options=board.lease(LEASE_S))
    host = Attendance(board)
    while (answer := host.beat())["running"]:
        assert answer["beat_error"] is None
        time.sleep(0.1)
    assert host.finish() == 0
    result = result_of(board.cell)
    assert (result["status"], result["host_lost"]) == ("ok", False)


def test_a_beat_of_an_earlier_life_of_the_device_is_no_beat(board: Board) -> None:
    board.beat.write_text(f"{now_ms() + 10**9}\n")  # before the restart its clock had come far
    board.run("sleep", "60", options=board.lease(0.7))
    assert board.result()["host_lost"]


@pytest.mark.parametrize("when", ["first probe", "second probe", "end of the program"])
def test_a_host_is_missed_at_every_moment_of_a_run(board: Board, tmp_path: Path, when: str) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    file = tmp_path / "probed"
    file.write_bytes(bytes(MIB))
    program, lease_s, options = {
        "first probe": (["touch", tmp_path / "ran"], 0.7, ["--probe-s", 90, "--probe-file", file]),
        "second probe": (["touch", tmp_path / "ran"], LEASE_S, ["--probe-s", 2 * LEASE_S]),
        # deaf by then; it has 2 s after its limit, which counts from its start, a little later
        "end of the program": ([PYTHON, "-c", deaf], 6.7, ["--time-limit-s", 5.0]),
    }[when]
    board.run(*program, options=(*options, *board.lease(lease_s)))
    if when == "second probe":  # attended until then
        host = Attendance(board)
        wait_for(lambda: host.beat() and (tmp_path / "ran").exists())
        host.finish()
    result = board.result(lease_s + BUSY_S)
    assert (result["host_lost"], result["interrupted"]) == (True, True)
    if when == "first probe":
        assert result["status"] == "killed"
        assert not (tmp_path / "ran").exists()
    elif when == "second probe":
        assert (result["status"], result["exit_code"]) == ("ok", 0)
        assert result["probe"]["before"] is not None
        assert result["probe"]["after"] is None
    else:
        assert (result["timed_out"], result["signal"]) == (True, signal.SIGKILL)


# --- attend --------------------------------------------------------------------------------------


def test_each_line_is_a_beat_and_has_an_answer(board: Board, tmp_path: Path) -> None:
    (tmp_path / "tail").write_bytes(b"x" * 100 + b'end\n"\\\xff\x00')
    options = ["--tail", tmp_path / "tail", 8, "--tail", tmp_path / "absent", 9]
    host = Attendance(board, *options, "--tail", tmp_path, 3)
    before = now_ms()
    first = host.beat()
    assert before <= int(board.beat.read_text()) <= now_ms()
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert first["running"] is False
    assert first["boot_id"] == boot_id
    assert [os.fsencode(tail) for tail in first["tails"]] == [b'end\n"\\\xff\x00', b"", b""]
    host.say(b"whatever\n\n$(x)")  # two lines, and one that is not whole
    assert [host.answer()["running"], host.answer()["running"]] == [False, False]
    host.say(b"\n")
    assert host.answer()["running"] is False
    assert host.finish() == 0
    left = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert left == {"tail", "beat"}


def test_the_end_of_a_cell_is_told_at_once_and_once(board: Board) -> None:
    host = Attendance(board, "--tail", board.cell / "stdout.txt", 1000)
    assert host.beat()["running"] is False
    board.run(*until_there(board.root / "go"))
    assert host.beat()["running"] is True
    (board.root / "go").touch()
    news = host.answer()
    assert (news["running"], news["tails"]) == (False, ["done\n"])
    assert (board.cell / "result.json").exists()
    assert host.beat()["running"] is False
    board.run(*until_there(board.root / "go on"))  # and the same again
    assert host.beat()["running"] is True
    (board.root / "go on").touch()
    assert host.answer()["running"] is False
    assert host.children() == []
    assert host.finish() == 0


def test_attending_costs_nothing_between_beats(board: Board) -> None:
    board.run("sleep", "300")
    host = Attendance(board)
    assert host.beat()["running"]

    def at_rest() -> bool:
        before = host.switches()
        time.sleep(0.5)
        return host.switches() == before

    wait_for(at_rest)  # it may not have come to that yet
    before = host.switches()
    time.sleep(2)
    assert host.switches() == before
    host.process.kill()  # and its helper goes with it
    helpers = host.children()
    host.finish()
    wait_for(lambda: not any(map(is_alive, helpers)))
    assert board.call("end", board.cell_lock) == {"ended": 1}


def test_attending_ends_with_the_connection(board: Board) -> None:
    board.run("sleep", "300")
    hosts = [Attendance(board, *options) for options in ((), ("--lease-s", LEASE_S))]
    for host in hosts:
        assert host.beat()["running"]
        assert host.process.stdout is not None
    hosts[0].process.stdout.close()  # nobody reads any more
    assert hosts[0].process.wait(timeout=BUSY_S) == 0
    # nobody writes any more, and nobody hung up
    assert hosts[1].process.wait(timeout=LEASE_S + BUSY_S) == 0
    # nobody reads, nor hung up: the pipe is full
    big = board.root / "big"
    big.write_bytes(b"x" * MIB)
    stuck = Attendance(board, "--lease-s", LEASE_S, "--tail", big, MIB)
    stuck.say(b"\n" * 5)
    assert stuck.process.wait(timeout=LEASE_S + BUSY_S) == 0
    assert board.is_locked(board.cell_lock)


def test_a_full_disk_does_not_silence_the_host(board: Board, small_disk: Any) -> None:
    script = """
launcher=$1 disk=$2
beat() { echo | "$launcher" attend --lock "$disk/lock" --beat-file "$disk/beat"; }
beat; first=$(cat "$disk/beat")
cat /dev/zero > "$disk/filler" 2>/dev/null
sleep .1; beat
[ "$(cat "$disk/beat")" -gt "$first" ] || exit 3
ls -A "$disk" >&2; echo {} > "$disk/result.json" || rm "$disk/filler"
"""
    disk = board.root / "disk"
    done = small_disk("64k", ["sh", "-c", script, "sh", board.launcher, disk])
    assert done.returncode == 0, done
    assert done.stdout.count(b'"beat_error":null') == 2
    assert sorted(done.stderr.split()[:2]) == [b"beat", b"filler"]


def test_a_beat_that_cannot_be_written_is_told(board: Board) -> None:
    board.beat = board.root / "no" / "beat"
    host = Attendance(board)
    assert host.beat()["beat_error"] == "No such file or directory"
    assert host.finish() == 0


# --- locks ---------------------------------------------------------------------------------------


def test_locked_tells_whether_a_lock_is_held(board: Board) -> None:
    assert not board.is_locked(board.cell_lock)  # there is no such file
    with locked(board.cell_lock):
        assert board.is_locked(board.cell_lock)
    assert not board.is_locked(board.cell_lock)
    assert board.call("end", board.root / "absent") == {"ended": 0}
    board.beat.symlink_to(board.cell_lock)
    assert "symbolic link" in board.call("locked", board.beat, code=5)["error"]
