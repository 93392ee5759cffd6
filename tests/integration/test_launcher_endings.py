"""Whatever ends a cell, nothing of the program is left and there is a result."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launcher_parts import PYTHON, Run, command, file_text, is_alive, result_of, wait_for

pytestmark = pytest.mark.slow  # the first test builds the launcher


BUSY_S = 20.0  # so much later may anything be, on a machine that is

FAMILY = """
import os, signal, sys, time
directory = sys.argv[1]
def note(name):
    with open(f"{directory}/{name}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{directory}/{name}.new", f"{directory}/{name}")
def sleep():
    while True:
        time.sleep(1)
if os.fork() == 0:                    # in the group, deaf to TERM
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("deaf"); sleep()
if os.fork() == 0:                    # a session of its own, below a parent that lives
    if os.fork() == 0:
        os.setsid(); note("session"); sleep()
    note("between"); sleep()
if os.fork() == 0:                    # a daemon: session of its own, parent gone
    os.setsid()
    if os.fork() == 0:
        note("daemon"); sleep()
    os._exit(0)
while not all(os.path.exists(f"{directory}/{name}") for name in sys.argv[3:]):
    time.sleep(.01)
note("program")
exec(sys.argv[2])
"""


OFFSPRING = ("deaf", "between", "session", "daemon")


def family_program(directory: Path, then: str) -> list[Any]:
    return [PYTHON, "-c", FAMILY, directory, then, *OFFSPRING]


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Callable[[], dict[str, int]]]:
    """Numbers of the processes that FAMILY has made so far; none is left after the test."""

    def members() -> dict[str, int]:
        names = (*OFFSPRING, "program")
        return {name: int(text) for name in names if (text := file_text(tmp_path / name))}

    yield members
    for pid in filter(is_alive, members().values()):
        os.kill(pid, signal.SIGKILL)


def test_the_time_limit_ends_the_program_and_all_its_offspring(
    cell: Run, family: Any, tmp_path: Path, output: Any
) -> None:
    result = cell(*family_program(tmp_path, "sleep()"), time_limit_s=5)
    assert (result["status"], result["timed_out"], result["interrupted"]) == ("killed", True, False)
    assert result["signal"] == signal.SIGTERM
    assert 5 <= result["wall_s"] < 5 + BUSY_S
    assert result["strays_left"] == 0
    assert len(family()) == 5
    assert not any(map(is_alive, family().values()))


def test_a_program_deaf_to_term_is_killed_after_the_grace_time(cell: Run) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    result = cell(PYTHON, "-c", deaf, time_limit_s=5)
    assert (result["status"], result["timed_out"], result["signal"]) == (
        "killed",
        True,
        signal.SIGKILL,
    )
    assert 7 <= result["wall_s"] < 7 + BUSY_S


def test_a_stopped_program_does_not_outlive_its_time(cell: Run) -> None:
    result = cell("sh", "-c", "kill -STOP $$; exec sleep 60", time_limit_s=0.3)
    assert (result["status"], result["signal"]) == ("killed", signal.SIGTERM)


def test_what_a_program_leaves_behind_is_ended(cell: Run, family: Any, tmp_path: Path) -> None:
    result = cell(*family_program(tmp_path, "os._exit(0)"))
    assert (result["status"], result["exit_code"]) == ("ok", 0)
    assert result["strays_found"] >= 4
    assert result["strays_left"] == 0
    assert not any(map(is_alive, family().values()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_launcher_ends_all_and_leaves_a_result(
    started: Any, family: Any, tmp_path: Path, number: signal.Signals
) -> None:
    process = started(*family_program(tmp_path, "sleep()"))
    wait_for(lambda: len(family()) == 5)
    process.send_signal(number)
    assert process.wait(timeout=120) == 0
    result = result_of(tmp_path / "cell")
    assert (result["status"], result["interrupted"], result["timed_out"]) == ("killed", True, False)
    assert number.name in result["status_detail"]
    assert not any(map(is_alive, family().values()))


def test_a_stop_during_the_first_probe_starts_nothing(started: Any, tmp_path: Path) -> None:
    process = started("touch", tmp_path / "was started", probe_s=300)
    wait_for((tmp_path / "cell" / "stdout.txt").exists)
    process.terminate()
    assert process.wait(timeout=120) == 0
    assert result_of(tmp_path / "cell")["status"] == "killed"
    assert not (tmp_path / "was started").exists()


def test_the_death_of_the_parent_ends_all_and_leaves_a_result(
    launcher: Path, family: Any, tmp_path: Path
) -> None:
    argv = command(launcher, tmp_path / "cell", {}, family_program(tmp_path, "sleep()"))
    host = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    parent = subprocess.Popen([PYTHON, "-c", host, *argv])
    wait_for(lambda: len(family()) == 5)
    parent.kill()
    parent.wait()
    wait_for((tmp_path / "cell" / "result.json").exists)
    result = result_of(tmp_path / "cell")
    assert (result["status"], result["interrupted"]) == ("killed", True)
    assert "parent died" in result["status_detail"]
    assert not any(map(is_alive, family().values()))


def test_the_end_of_the_parent_s_thread_is_not_the_parent_s_death(
    started: Any, tmp_path: Path
) -> None:
    processes = []
    thread = threading.Thread(target=lambda: processes.append(started("sleep", "1.5")))
    thread.start()
    thread.join()
    assert processes[0].wait(timeout=120) == 0
    result = result_of(tmp_path / "cell")
    assert (result["status"], result["interrupted"]) == ("ok", False)


def test_a_launcher_killed_outright_takes_the_program_with_it(started: Any, tmp_path: Path) -> None:
    note = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    process = started(PYTHON, "-c", note)
    pid = int(wait_for(lambda: file_text(tmp_path / "cell" / "stdout.txt")))
    wait_for(
        lambda: len(file_text(tmp_path / "cell" / "samples.csv").splitlines()) > 10
    )  # a second's worth
    process.kill()
    process.wait()
    wait_for(lambda: not is_alive(pid))
    assert not (tmp_path / "cell" / "result.json").exists()


def test_an_ignored_hangup_stays_ignored(launcher: Path, tmp_path: Path) -> None:
    argv = command(launcher, tmp_path, {}, ["sleep", "1"])
    process = subprocess.Popen(
        ["nohup", *argv], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for((tmp_path / "samples.csv").exists)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=120) == 0
    assert result_of(tmp_path)["status"] == "ok"


def test_children_that_the_launcher_did_not_make_are_left_alone(
    launcher: Path, tmp_path: Path
) -> None:
    # A shell that starts something and then becomes the launcher makes it the launcher's child.
    argv = command(launcher, tmp_path / "cell", {}, ["true"])
    script = 'sleep 600 & echo $! > "$1"; shift; exec "$@"'
    subprocess.run(["sh", "-c", script, "sh", tmp_path / "pid", *argv], check=True)
    pid = int((tmp_path / "pid").read_text())
    try:
        assert is_alive(pid)
        assert result_of(tmp_path / "cell")["strays_found"] == 0
    finally:
        os.kill(pid, signal.SIGKILL)
