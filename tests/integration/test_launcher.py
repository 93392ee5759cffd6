"""The launcher run for real: what becomes of a program, what it is given, and what is measured."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from launcher_parts import MIB, PYTHON, Run, command, result_of, table

pytestmark = pytest.mark.slow  # the first test builds the launcher


def test_a_result_has_every_field_of_the_contract(cell: Run) -> None:
    result = cell("true", probe_s=0.05)
    contract = [
        "launcher_version",
        "argv",
        "started_unix_s",
        "ended_unix_s",
        "wall_s",
        "status",
        "status_detail",
        "exit_code",
        "signal",
        "timed_out",
        "interrupted",
        "data_limit_bytes",
        "data_limit_enforced",
        "anon_peak_bytes",
        "rss_peak_bytes",
        "vm_data_peak_bytes",
        "majflt",
        "minflt",
        "user_s",
        "system_s",
        "invol_ctx",
        "vol_ctx",
        "samples",
        "sampler_cpu_s",
        "sampler_cpu_share",
        "cpu_wait_s",
        "cpu_throttled_s",
        "neighbour_cpu_s",
        "steal_cpu_s",
        "entry",
        "exit",
        "probe",
    ]
    assert set(contract) <= set(result)
    assert result["status"] == "ok"
    assert (result["exit_code"], result["signal"]) == (0, None)
    assert result["argv"] == ["true"]
    assert result["data_limit_bytes"] is None
    assert result["data_limit_enforced"] is None
    assert result["entry"]["mem_total_bytes"] > 0
    assert 0 <= result["entry"]["cpu_busy_share"] <= 1
    for when in ("before", "after"):
        assert result["probe"][when]["compute_ms"] > 0
        assert result["probe"][when]["read_ms"] is None


def test_exit_codes_are_kept(cell: Run) -> None:
    for code in (1, 37, 255):
        result = cell("sh", "-c", f"exit {code}")
        assert (result["status"], result["exit_code"]) == ("failed", code)


def test_a_crash_is_a_failure_with_its_signal(cell: Run) -> None:
    result = cell("sh", "-c", "kill -SEGV $$")
    assert (result["status"], result["exit_code"], result["signal"]) == (
        "failed",
        None,
        signal.SIGSEGV,
    )
    assert "SIGSEGV" in result["status_detail"]


def test_a_kill_from_outside_is_no_failure_of_the_program(cell: Run) -> None:
    result = cell("sh", "-c", "kill -KILL $$")
    assert (result["status"], result["signal"]) == ("killed", signal.SIGKILL)
    assert not result["timed_out"]
    assert not result["interrupted"]


def test_a_program_that_cannot_be_started_says_why(cell: Run, tmp_path: Path) -> None:
    plain = tmp_path / "not executable"
    plain.write_text("x")
    for program, options, words in (
        ("no-such-program", {}, "cannot start no-such-program: No such file"),
        (plain, {}, "Permission denied"),
        ("true", {"cwd": tmp_path / "nowhere"}, f"cannot enter {tmp_path}/nowhere: No such file"),
    ):
        result = cell(program, **options)
        assert result["status"] == "spawn_failed"
        assert words in result["status_detail"]
        assert result["exit_code"] is None
        assert result["wall_s"] is None


def test_a_file_that_is_no_program_is_not_handed_to_a_shell(
    cell: Run, tmp_path: Path, output: Any
) -> None:
    script = tmp_path / "script"
    script.write_text("echo shell ran\n")
    script.chmod(0o755)
    assert cell(script)["status"] == "spawn_failed"
    assert output() == ""


def test_arguments_reach_the_program_and_the_result_unchanged(cell: Run, output: Any) -> None:
    arguments = [
        'a b"c',
        "line\nnext",
        "",
        "'quoted' $HOME \\",
        "--",
        "--dir",
        "Füße 日本",
        os.fsdecode(b"\xff\xc3"),
    ]
    show = "import sys, os; print(list(map(os.fsencode, sys.argv[1:])))"
    result = cell(PYTHON, "-c", show, *arguments)
    expected = [os.fsencode(argument) for argument in arguments]
    assert output().strip() == str(expected)
    assert [os.fsencode(argument) for argument in result["argv"][3:]] == expected


def test_output_is_kept_byte_for_byte(cell: Run, tmp_path: Path) -> None:
    write = "import os; os.write(1, bytes(range(256)) * 3); os.write(2, b'\\xff\\x00\\r\\n')"
    cell(PYTHON, "-c", write)
    assert (tmp_path / "cell" / "stdout.txt").read_bytes() == bytes(range(256)) * 3
    assert (tmp_path / "cell" / "stderr.txt").read_bytes() == b"\xff\x00\r\n"


def test_the_environment_is_only_what_was_asked_for(
    cell: Run, output: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAME_OF_THE_HOST", "x")
    cell("env", "-0", env=["A=x y", "B=", "C=1\n2", "LANG=C"])
    path, home = os.environ["PATH"], os.environ["HOME"]
    expected = {f"PATH={path}", f"HOME={home}", "LANG=C", "A=x y", "B=", "C=1\n2", ""}
    assert set(output().split("\0")) == expected


def test_the_program_reads_nothing_and_works_where_it_is_told(
    cell: Run, output: Any, tmp_path: Path
) -> None:
    cell("cat", popen={"input": b"not for the program"})
    assert output() == ""
    cell("pwd", cwd=tmp_path)
    assert output() == f"{tmp_path}\n"


def test_open_files_and_signal_settings_are_not_inherited(cell: Run, output: Any) -> None:
    read_end, write_end = os.pipe()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        cell("ls", "/proc/self/fd", popen={"pass_fds": [read_end]})
        assert output().split() == ["0", "1", "2", "3"]  # 3 is the directory that ls reads
        cell("grep", "-E", "SigBlk|SigIgn", "/proc/self/status")
        assert {line.split()[1] for line in output().splitlines()} == {"0" * 16}
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        os.close(read_end)
        os.close(write_end)


def test_samples_follow_the_memory_of_the_program(cell: Run, tmp_path: Path) -> None:
    samples = tmp_path / "cell" / "samples.csv"
    grow = (
        "import sys, time\n"
        "def watched():\n"  # until there are samples of how it is now: they are written in bulk
        "    seen = lambda: open(sys.argv[1]).read().count('\\n')\n"
        "    for _ in 'ab':\n"
        "        before = seen()\n"
        "        while seen() == before: time.sleep(.05)\n"
        "watched(); block = bytearray(80 << 20); watched(); del block\n"
        "t = time.process_time()\nwhile time.process_time() < t + .1: pass\nwatched()"
    )
    result = cell(PYTHON, "-c", grow, samples)
    rows = table(tmp_path / "cell" / "samples.csv")
    assert list(rows[0])[:9] == [
        "t_ms",
        "anon_bytes",
        "rss_bytes",
        "vm_data_bytes",
        "majflt",
        "minflt",
        "user_ms",
        "system_ms",
        "threads",
    ]
    times = [int(row["t_ms"]) for row in rows]
    assert times == sorted(set(times))
    assert len(rows) == result["samples"] >= 20
    anon = [int(row["anon_bytes"]) for row in rows]
    assert anon[0] < 40 * MIB
    assert 80 * MIB <= max(anon) == result["anon_peak_bytes"] < 140 * MIB
    assert anon[-1] < max(anon) - 70 * MIB
    assert result["rss_peak_bytes"] >= result["anon_peak_bytes"]
    assert result["vm_data_peak_bytes"] >= 80 * MIB
    assert int(rows[-1]["user_ms"]) + int(rows[-1]["system_ms"]) >= 90
    assert result["user_s"] + result["system_s"] >= 0.1
    assert result["minflt"] > 0


def test_memory_beyond_the_limit_is_refused(cell: Run) -> None:
    result = cell(PYTHON, "-c", "bytearray(300 << 20)", data_limit_bytes=200 * MIB)
    assert (result["status"], result["exit_code"]) == ("failed", 1)
    assert result["data_limit_enforced"] is True
    assert result["vm_data_peak_bytes"] <= 200 * MIB
    within = cell(PYTHON, "-c", "bytearray(100 << 20)", data_limit_bytes=200 * MIB)
    assert within["status"] == "ok"


def test_selftest_says_whether_the_limit_holds(launcher: Path) -> None:
    done = subprocess.run(
        [launcher, "selftest", "--data-limit-bytes", str(64 * MIB)],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["data_limit_enforced"] is True


def test_a_system_that_ignores_the_limit_runs_no_capped_cell(
    launcher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("no strace, which stands in for a system that ignores the limit")
    # A sanitized launcher cannot look for leaks while it is traced.
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0")
    # The kernel's answer is replaced: success, and nothing was limited.
    ignoring = [
        "strace",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "inject=prlimit64,setrlimit:retval=0",
    ]
    if subprocess.run([*ignoring, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("strace may not trace here")
    check = [launcher, "selftest", "--data-limit-bytes", str(64 * MIB)]
    done = subprocess.run([*ignoring, *check], capture_output=True, check=False)
    assert done.returncode == 6
    assert json.loads(done.stdout)["data_limit_enforced"] is False

    argv = command(
        launcher, tmp_path, {"data_limit_bytes": 64 * MIB}, ["touch", tmp_path / "was started"]
    )
    subprocess.run([*ignoring, *argv], check=True)
    result = result_of(tmp_path)
    assert result["status"] == "limit_not_enforced"
    assert result["data_limit_enforced"] is False
    assert "ignored" in result["status_detail"]
    assert not (tmp_path / "was started").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["run"],
        ["run", "--dir", "d"],
        ["state", "--dir", "d"],
        ["selftest"],
        ["probe", "--probe-s", "x"],
    ],
)
def test_wrong_usage_is_one_line_and_code_2(launcher: Path, arguments: list[str]) -> None:
    done = subprocess.run([launcher, *arguments], capture_output=True, check=False, text=True)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_version(launcher: Path) -> None:
    assert subprocess.run(
        [launcher, "--version"], capture_output=True, check=True
    ).stdout.startswith(b"moe-launcher ")


def test_the_probe_reads_directly_where_it_can(launcher: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(os.urandom(20 * MIB))
    argv = [launcher, "probe", "--probe-s", "0.3", "--probe-file", tmp_path / "file"]
    probe = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
    assert probe["compute_reps"] >= 1
    assert probe["compute_ms"] >= probe["compute_min_ms"] > 0
    assert probe["read_ms"] > 0
    assert probe["read_bytes"] == 16 * MIB
    assert probe["read_direct"] in (True, False)


def reading_s(times: int) -> float:
    """CPU time of reading what is read for a sample; 0.005 s of 500 where the aim was set."""
    files = [os.open(f"/proc/self/{name}", os.O_RDONLY) for name in ("status", "stat")]
    began = time.thread_time()
    for _ in range(times):
        for fd in files:
            os.pread(fd, 4096, 0)
    took = time.thread_time() - began
    for fd in files:
        os.close(fd)
    return took


def test_watching_costs_little(cell: Run, device: Path) -> None:
    busy = "import time; t = time.monotonic()\nwhile time.monotonic() < t + 10: sum(range(20000))"
    result = cell(PYTHON, "-c", busy, proc_root=device / "proc", sys_root=device / "sys")
    assert result["samples"] > 100
    # The aim is 0.005, and docs/launcher.md has the figures. Twice that allows for neighbours that
    # take the caches away; where all is slower than here, as much more as our own reads are.
    assert result["sampler_cpu_share"] < max(0.01, 20 * reading_s(500) / result["wall_s"])
