"""Cells on this machine through the real launcher; killed, interrupted, short of disk, resumed."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cell_parts import FAKE_ENGINE, fake_build, make_arm, make_plan

from harness.build import ensure_engine
from harness.device.launcher import Sampling
from harness.errors import DeviceError
from harness.events import CellProgress, CellRepeated, SessionEvent
from harness.journal import Event, Journal, load_records, read_journal
from harness.measuring import ModelFiles
from harness.planned import Plan
from harness.records import CellRecord
from harness.session import run_session
from harness.stopping import StopFlag
from harness.targets.local import LocalTarget

REPO = Path(__file__).resolve().parents[2]
DRIVER = Path(__file__).with_name("session_driver.py")


@pytest.fixture(scope="session")
def launcher() -> Path:
    """The real launcher: built alone in seconds, the first time."""
    return ensure_engine(binary=FAKE_ENGINE).launcher


def run(campaign_dir: Path, plan: Plan, launcher: Path, **options: Any) -> list[CellRecord]:
    """A session on this machine, without probes unless asked for."""
    with Journal.open(campaign_dir) as journal:
        return run_session(
            plan,
            target=LocalTarget(),
            build=fake_build(launcher),
            journal=journal,
            **(
                {
                    "model": ModelFiles(FAKE_ENGINE, (FAKE_ENGINE,), "m"),
                    "on_event": lambda _event: None,
                    "sampling": Sampling(probe_s=0),
                }
                | options
            ),
        )


def engines_of(campaign_dir: Path) -> list[int]:
    """Processes of this campaign's cells that are alive."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if str(campaign_dir / "cells").encode() in words:
            found.append(int(process.name))
    return found


def program_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()


@pytest.fixture
def model(tmp_path: Path) -> ModelFiles:
    """8 MB that no engine reads, but the probe and the page cache do."""
    path = tmp_path / "model.gguf"
    path.write_bytes(os.urandom(8 << 20))
    return ModelFiles(path, (path,), "m")


# --- what a cell leaves ---


def test_a_campaign_of_real_cells(tmp_path: Path, launcher: Path, model: ModelFiles) -> None:
    plan = make_plan(make_arm(n_predict=10), make_arm("other", n_predict=5))
    options = {"sampling": Sampling(probe_s=0.2), "model": model}
    records = run(tmp_path, plan, launcher, **options)
    assert [r.status for r in records] == ["ok"] * 3
    first = records[0]
    assert first.counters == records[2].counters
    assert first.output_sha256 == records[2].output_sha256 != records[1].output_sha256
    assert first.exit_code == 0
    assert first.argv[0] == str(FAKE_ENGINE)
    assert first.metrics.anon_peak_bytes
    assert first.metrics.rss_peak_bytes
    assert first.metrics.sampler_cpu_share is not None
    assert first.metrics.neighbour_cpu_share is not None
    assert first.entry is not None
    assert first.entry.mem_available_bytes
    assert first.exit is not None
    for probe in (first.probe.before, first.probe.after):
        assert probe is not None
        assert probe.compute_ms
        assert probe.read_ms
    assert first.started_unix_s is not None
    assert first.ended_unix_s is not None
    assert first.ended_unix_s > first.started_unix_s
    cell = tmp_path / "cells" / "00-baseline"
    assert {p.name for p in cell.iterdir()} == {
        "device.csv",
        "launcher.txt",
        "prompt.txt",
        "record.json",
        "result.json",
        "samples.csv",
        "stderr.txt",
        "stdout.txt",
        "telemetry.jsonl",
        "tokens.csv",
    }
    assert (cell / "stdout.txt").read_text() == "fake text"
    with (cell / "tokens.csv").open() as f:
        assert len(list(csv.DictReader(f))) == 10
    assert load_records(tmp_path) == records


def test_prompts_of_any_text_arrive_and_paths_may_hold_blanks(
    tmp_path: Path, launcher: Path
) -> None:
    campaign = tmp_path / "with blanks; $(touch x) 'é'\n"
    arm = make_arm(say="'\"$(touch x)\n\\ é")
    records = run(campaign, make_plan(arm), launcher)
    assert [r.status for r in records] == ["ok", "ok"]
    prompt = (campaign / "cells" / "00-baseline" / "prompt.txt").read_text()
    assert prompt == arm.prompt
    assert json.loads(prompt)["say"] == "'\"$(touch x)\n\\ é"


def test_progress_of_a_running_cell(tmp_path: Path, launcher: Path) -> None:
    events: list[SessionEvent] = []
    plan = make_plan(make_arm(n_predict=40, token_ms=200))
    plan = replace(plan, cells=plan.cells[:1])
    run(tmp_path, plan, launcher, on_event=events.append)
    progress = [e for e in events if isinstance(e, CellProgress)]
    assert progress
    known = [e.tokens for e in progress if e.tokens is not None]
    assert known
    assert all(0 < tokens <= 40 for tokens in known)
    # a real launcher's own samples, of the fake engine's own memory
    assert (anon := progress[-1].readings.anon_bytes) is not None
    assert 2**20 < anon <= (progress[-1].readings.anon_peak_bytes or 0)


@pytest.mark.parametrize(
    ("behaviour", "status", "exit_code", "words"),
    [
        ({"exit": 4, "complain": "needs 9 bytes, allowed 8"}, "refused", 4, "needs 9 bytes"),
        ({"exit": 3, "complain": "m.gguf: not a GGUF"}, "failed", 3, "not a GGUF"),
        ({"die_after": 2, "exit": 1}, "failed", 1, "exit code 1"),
        ({"die_after": 2}, "failed", 0, "no summary"),
        ({"signal": int(signal.SIGABRT)}, "failed", None, "SIGABRT"),
        ({"signal": int(signal.SIGKILL)}, "killed", None, "SIGKILL"),
        ({"hang": True}, "killed", None, "time limit"),
        ({"hang": True, "ignore_term": True}, "killed", None, "time limit"),
        ({"start": {"mode": "plain"}}, "failed", 0, "asked for mode stream"),
    ],
)
def test_every_way_a_cell_can_end(  # noqa: PLR0917
    tmp_path: Path,
    launcher: Path,
    behaviour: dict[str, Any],
    status: str,
    exit_code: int | None,
    words: str,
) -> None:
    arm = replace(make_arm("other", **behaviour), time_limit_s=8.0)
    records = run(tmp_path, make_plan(make_arm(), arm), launcher)
    assert [r.status for r in records] == ["ok", status, "ok"]
    assert records[1].exit_code == exit_code
    assert words in str(records[1].status_detail)
    assert engines_of(tmp_path) == []


def test_a_cell_whose_launcher_is_killed_runs_again(tmp_path: Path, launcher: Path) -> None:
    reasons: list[str] = []

    def kill(event: SessionEvent) -> None:
        if isinstance(event, CellRepeated):
            reasons.append(event.reason)
            assert engines_of(tmp_path) == []
        if isinstance(event, CellProgress) and event.cell.arm == "other" and not reasons:
            (launcher_pid,) = [p for p in engines_of(tmp_path) if program_of(p) == str(launcher)]
            os.kill(launcher_pid, signal.SIGKILL)

    plan = make_plan(make_arm(), replace(make_arm("other", hang=True), time_limit_s=10.0))
    records = run(tmp_path, plan, launcher, on_event=kill)
    assert [r.status for r in records] == ["ok", "killed", "ok"]
    assert "time limit" in str(records[1].status_detail)
    (reason,) = reasons
    assert "the launcher there was ended by somebody else" in reason
    assert engines_of(tmp_path) == []


def test_a_missing_launcher_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"cannot start /no/launcher: No such file"):
        run(tmp_path, make_plan(make_arm()), Path("/no/launcher"))


def test_the_model_is_out_of_the_page_cache_when_a_cell_starts(
    tmp_path: Path, launcher: Path, model: ModelFiles
) -> None:
    run(tmp_path / "campaign", make_plan(make_arm()), launcher, model=model)
    started = [e for e in read_journal(tmp_path / "campaign") if e.event == "cell_started"]
    assert started[0].data["page_cache"] == {"before_bytes": 8 << 20, "after_bytes": 0}


# --- the harness is killed ---


def start_driver(campaign: Path, launcher: Path, token_ms: float = 5, wait_s: float = 0.05) -> Any:
    return subprocess.Popen(
        [sys.executable, str(DRIVER), str(campaign), str(launcher), str(token_ms), str(wait_s)],
        cwd=REPO,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPO)},
    )


def check_whole(campaign: Path) -> None:
    """No finished cell lost, repeated or counted twice."""
    events = read_journal(campaign)
    finished = [e.data["index"] for e in events if e.event == "cell_finished"]
    assert finished == [0, 1, 2, 3]
    done: set[int] = set()
    for event in events:
        if event.event == "cell_started":
            assert event.data["index"] not in done, "a finished cell was run again"
        if event.event == "cell_finished":
            done.add(event.data["index"])
    records = load_records(campaign)
    assert [r.index for r in records] == [0, 1, 2, 3]
    assert {r.status for r in records} == {"ok"}
    assert len(list((campaign / "cells").glob("*/record.json"))) == 4
    assert len({r.output_sha256 for r in records}) == 1
    for cell in campaign.glob("cells/0?-*"):
        if ".aborted-" not in cell.name:
            with (cell / "tokens.csv").open() as f:
                assert len(list(csv.DictReader(f))) == 4


def kill_until_finished(campaign: Path, launcher: Path, kills: int, seed: int) -> int:
    """Start the driver, SIGKILL it after a random time, again and again, then let it finish."""
    dice = random.Random(seed)  # noqa: S311
    killed = 0
    kept: dict[str, bytes] = {}
    for _ in range(kills):
        driver = start_driver(campaign, launcher)
        try:
            driver.wait(dice.uniform(0.1, 1.2))
        except subprocess.TimeoutExpired:
            driver.kill()
            killed += 1
        driver.communicate()
        if (campaign / "journal.jsonl").exists():
            for event in read_journal(campaign):
                if event.event == "cell_finished":
                    record = campaign / event.data["record"]
                    assert kept.setdefault(str(record), record.read_bytes()) == record.read_bytes()
    driver = start_driver(campaign, launcher)
    _, errors = driver.communicate(timeout=1200)
    assert driver.returncode == 0, errors
    check_whole(campaign)
    assert engines_of(campaign) == []
    return killed


def kill_campaigns(root: Path, launcher: Path, at_least: int, attempts: int, seed: int) -> None:
    """Campaigns, each started `attempts` times to be killed, until `at_least` kills were real.

    On a quick machine some campaigns end before their killer comes; that many are bounded.
    """
    killed = campaigns = 0
    while killed < at_least:
        assert campaigns < 2 * at_least, f"only {killed} kills in {campaigns} campaigns"
        killed += kill_until_finished(root / f"c{campaigns}", launcher, attempts, seed + campaigns)
        campaigns += 1


def test_killed_at_random_moments_no_finished_cell_is_lost_or_repeated(
    tmp_path: Path, launcher: Path
) -> None:
    kill_campaigns(tmp_path, launcher, at_least=3, attempts=3, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_killed_at_many_random_moments(tmp_path: Path, launcher: Path) -> None:
    kill_campaigns(tmp_path, launcher, at_least=30, attempts=5, seed=100)


def wait_for(campaign: Path, event: str, index: int) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if (campaign / "journal.jsonl").exists():
            found: list[Event] = [e for e in read_journal(campaign) if e.event == event]
            if any(e.data.get("index") == index for e in found):
                return
        time.sleep(0.02)
    pytest.fail(f"no {event} of cell {index} in time")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_in_a_cell_ends_the_engine_and_resume_finishes(
    tmp_path: Path, launcher: Path, number: signal.Signals
) -> None:
    campaign = tmp_path / "campaign"
    driver = start_driver(campaign, launcher, token_ms=1000)
    wait_for(campaign, "cell_started", 1)
    time.sleep(0.2)
    driver.send_signal(number)
    _, errors = driver.communicate(timeout=240)
    assert driver.returncode == 130
    assert "resume=campaign" in errors
    assert engines_of(campaign) == []
    assert read_journal(campaign)[-1].data == {"reason": number.name, "index": 1}
    before = load_records(campaign)
    assert [r.index for r in before] == [0]

    assert start_driver(campaign, launcher, token_ms=1000).wait(900) == 0
    check_whole(campaign)
    assert load_records(campaign)[0] == before[0]
    assert (campaign / "cells" / "01-half.aborted-1" / "result.json").is_file()


def test_an_engine_outlives_a_killed_harness_by_little(tmp_path: Path, launcher: Path) -> None:
    campaign = tmp_path / "campaign"
    driver = start_driver(campaign, launcher, token_ms=100_000)
    wait_for(campaign, "cell_started", 0)
    deadline = time.monotonic() + 120
    while len(engines_of(campaign)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    driver.kill()
    driver.communicate()
    deadline = time.monotonic() + 60
    while engines_of(campaign) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert engines_of(campaign) == []


def test_an_orphaned_launcher_is_ended_before_the_next_cell(tmp_path: Path, launcher: Path) -> None:
    """What a harness killed in the instant of starting a launcher leaves behind."""
    lock = tmp_path / ".cell.lock"
    orphan = LocalTarget().run(["sleep", "600"], log=tmp_path / "log", lock=lock, tails={})
    assert LocalTarget().is_locked(lock)
    began = time.monotonic()
    assert {r.status for r in run(tmp_path, make_plan(make_arm()), launcher)} == {"ok"}
    assert time.monotonic() - began > 3
    assert orphan.poll() == -signal.SIGTERM


def test_two_sessions_on_one_campaign(tmp_path: Path, launcher: Path) -> None:
    campaign = tmp_path / "campaign"
    first = start_driver(campaign, launcher, token_ms=100)
    wait_for(campaign, "cell_started", 0)
    first.send_signal(signal.SIGSTOP)  # it is not through before the second has come
    second = start_driver(campaign, launcher, token_ms=100)
    _, errors = second.communicate(timeout=240)
    first.send_signal(signal.SIGCONT)
    assert second.returncode == 2
    assert errors.strip().endswith("another process is running this campaign")
    assert first.wait(900) == 0
    check_whole(campaign)


def test_a_stop_while_waiting_starts_nothing(tmp_path: Path, launcher: Path) -> None:
    campaign = tmp_path / "campaign"
    driver = start_driver(campaign, launcher, wait_s=900)
    wait_for(campaign, "cell_waiting", 1)
    driver.send_signal(signal.SIGINT)
    driver.communicate(timeout=240)
    assert driver.returncode == 130
    assert not (campaign / "cells" / "01-half").exists()


# --- the disk is full ---


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A real filesystem of 1.5 MB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small tmpfs needs root")
    where = tmp_path / "small"
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1500k", "none", str(where)]
    if subprocess.run(command, check=False).returncode != 0:
        pytest.skip("this machine does not allow mounting a tmpfs")
    yield where
    subprocess.run(["umount", str(where)], check=True)


@pytest.mark.parametrize("left", [0, 300 * 1024, 600 * 1024])
def test_a_disk_that_fills_up_between_cells(small_disk: Path, launcher: Path, left: int) -> None:
    """Left: bytes that are still free; too few for a cell, for its result, for its samples."""
    campaign = small_disk / "campaign"
    filler = small_disk / "filler"
    plan = make_plan(make_arm(), make_arm("other", token_ms=50), make_arm("third"))

    def fill(event: SessionEvent) -> None:
        if event.cell.index == 1 and not filler.exists():
            stat = os.statvfs(small_disk)
            filler.write_bytes(b"x" * max(0, stat.f_bavail * stat.f_frsize - left))

    if left < 600 * 1024:
        with pytest.raises(DeviceError, match=r"(?i)no space left on device"):
            run(campaign, plan, launcher, on_event=fill)
        kept = load_records(campaign)
        assert kept
        assert {r.status for r in kept} == {"ok"}
        filler.unlink()
    records = run(campaign, plan, launcher)
    assert [r.status for r in records] == ["ok"] * 4
    assert len(list(campaign.glob("cells/*/record.json"))) == 4


def test_interrupting_through_the_flag_from_another_thread(tmp_path: Path, launcher: Path) -> None:
    from threading import Timer

    from harness.errors import Interrupted

    stop = StopFlag()
    Timer(0.5, stop.request, ["the window was closed"]).start()
    with pytest.raises(Interrupted, match="the window was closed"):
        run(tmp_path, make_plan(make_arm(hang=True)), launcher, stop=stop)
    assert engines_of(tmp_path) == []
