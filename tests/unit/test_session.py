"""The session's order, pauses, journal and ends, on a scripted target and a made-up clock."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cell_parts import fake_build, make_arm, make_plan, with_engine

from harness.errors import DeviceError, Interrupted, UsageError
from harness.events import CellFinished, CellProgress, CellStarted, SessionEvent, Waiting
from harness.journal import Journal, ended_as, load_records, read_journal
from harness.measuring import EarlierCell, ModelFiles
from harness.planned import Plan, PlannedCell
from harness.records import CellRecord
from harness.session import run_session
from harness.stopping import StopFlag
from harness.targets.local import LocalTarget
from harness.targets.target import PageCache, Running

CELL_S = 5.0  # how long a scripted cell takes on the made-up clock


class Clock:
    """Moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class ScriptedRunning(Running):
    """A launcher that ends CELL_S after its start, or when asked to."""

    def __init__(self, clock: Clock, finish: Callable[[], int]) -> None:
        self._clock, self._end, self._finish = clock, clock.now + CELL_S, finish
        self._code: int | None = None
        self.terminated = False

    def poll(self) -> int | None:
        if self._code is None and self._clock.now >= self._end:
            self._code = self._finish()
        return self._code

    def terminate(self) -> None:
        self.terminated = True
        self._code = 0

    def kill(self) -> None:
        self._code = -signal.SIGKILL


class ScriptedTarget(LocalTarget):
    """Writes what launcher and engine would have written, as the prompt asks."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.started: list[tuple[float, str]] = []
        self.running: list[ScriptedRunning] = []
        self.evicted: list[Path] = []
        self.locked_until = 0.0
        self.on_start: Callable[[Path], None] = lambda _dir: None

    def run(
        self, argv: Sequence[str], *, log: Path, lock: Path, tails: Mapping[Path, int]
    ) -> Running:
        work_dir = log.parent
        self.started.append((self.clock.now, work_dir.name))
        self.on_start(work_dir)
        running = ScriptedRunning(self.clock, lambda: write_cell(work_dir, list(argv)))
        self.running.append(running)
        return running

    def is_locked(self, lock: Path) -> bool:
        return self.clock.now < self.locked_until

    def end_holders(self, lock: Path) -> None:
        pass

    def evict_page_cache(self, files: Iterable[Path]) -> PageCache:
        self.evicted += files
        return PageCache(10, 0)

    def tail(self, path: Path, size: int) -> bytes:
        running = self.running[-1]
        done = int(4 * (1 - (running._end - self.clock.now) / CELL_S))
        return b'{"type": "token", "token": %d}\n' % done


def write_cell(work_dir: Path, argv: list[str]) -> int:
    engine = argv[argv.index("--") + 1 :]
    value = dict(itertools.pairwise(engine))
    asked = json.loads(Path(value["-f"]).read_text())
    result = {"status": "ok", "exit_code": 0, "status_detail": None} | asked.get("result", {})
    if asked.get("launcher_exit"):
        (work_dir / "launcher.txt").write_text("disk is full\n\n")
        return int(asked["launcher_exit"])
    (work_dir / "result.json").write_text(json.dumps(result))
    (work_dir / "stderr.txt").write_text(asked.get("stderr", ""))
    n = int(value["-n"])
    config = {
        "n_predict": n,
        "threads": int(value["-t"]),
        "n_ctx": int(value["-c"]),
        "n_batch": int(value["-b"]),
        "cache_mb": int(value["--cache-mb"]),
        "io_threads": int(value["--io-threads"]),
        "direct_io_requested": True,
    }
    lines = [
        {"type": "start", "mode": "stream", "config": config},
        {"type": "summary", "tokens": n, "tok_s": 500.0, "stopped_by": "length"},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (work_dir / "telemetry.jsonl").write_text(text)
    rows = "".join(f"{i},2.0\n" for i in range(n))
    (work_dir / "tokens.csv").write_text("token,wall_ms\n" + rows)
    return 0


class Bench:
    """A campaign directory, a scripted target, and the events of every session run on them."""

    def __init__(self, tmp_path: Path) -> None:
        self.dir = tmp_path / "runs" / "campaign-1"
        self.clock = Clock()
        self.target = ScriptedTarget(self.clock)
        self.events: list[SessionEvent] = []
        self.stop = StopFlag()
        self.on_event: Callable[[SessionEvent], None] = lambda _event: None
        self.options: dict[str, Any] = {}
        model = tmp_path / "m.gguf"
        self.model = ModelFiles(model, (model, tmp_path / "m2.gguf"), "hash")

    def run(self, plan: Plan) -> list[CellRecord]:
        def see(event: SessionEvent) -> None:
            self.events.append(event)
            self.on_event(event)

        with Journal.open(self.dir) as journal:
            return run_session(
                plan,
                target=self.target,
                build=fake_build(Path("/launcher")),
                model=self.model,
                journal=journal,
                on_event=see,
                stop=self.stop,
                clock=self.clock,
                sleep=self.clock.sleep,
                **self.options,
            )

    def journal(self) -> list[str]:
        return [e.event for e in read_journal(self.dir)]

    def of(self, kind: type) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


PLAN = make_plan(make_arm("baseline"), make_arm("half"), make_arm("off"), wait_s=30)


def test_cells_run_in_order_with_the_pause_between_end_and_start(bench: Bench) -> None:
    records = bench.run(PLAN)
    assert [r.cell for r in records] == ["baseline", "half", "off", "sentinel"]
    assert {r.status for r in records} == {"ok"}
    assert [name for _, name in bench.target.started] == [
        "00-baseline",
        "01-half",
        "02-off",
        "03-sentinel",
    ]
    starts = [at for at, _ in bench.target.started]
    gaps = [b - a for a, b in itertools.pairwise(starts)]
    assert gaps == pytest.approx([CELL_S + 30] * 3, abs=0.3)
    assert [r.wait.reason for r in records if r.wait] == ["first cell"] + ["spacing"] * 3
    assert [r.wait.seconds for r in records if r.wait] == pytest.approx([0, 30, 30, 30], abs=0.3)


def test_the_first_cell_keeps_its_pause_from_the_last_of_the_campaign_before(bench: Bench) -> None:
    ended, asked = bench.clock.now, bench.clock.now + 20  # judged, drawn and logged meanwhile
    bench.clock.now = asked
    bench.options["earlier"] = EarlierCell(ended, spacing_s=30)
    first, *_ = bench.run(PLAN)
    assert bench.target.started[0][0] == pytest.approx(ended + 30, abs=0.3)
    assert first.wait is not None
    assert first.wait.reason == "spacing after the campaign before"
    assert first.wait.seconds == pytest.approx(30, abs=0.3)


def test_records_and_events_are_on_disk_as_they_appear(bench: Bench) -> None:
    def check(event: SessionEvent) -> None:
        if isinstance(event, CellFinished):
            assert load_records(bench.dir)[-1] == event.record

    bench.on_event = check
    records = bench.run(PLAN)
    assert load_records(bench.dir) == records
    assert bench.journal() == [
        "campaign_started",
        *["cell_waiting", "cell_started", "cell_finished"] * 4,
        "campaign_finished",
    ]
    cell = bench.dir / "cells" / "00-baseline"
    assert json.loads((cell / "record.json").read_text())["identity"]["model_sha256"] == "hash"
    assert (cell / "prompt.txt").read_text() == "{}"


def test_the_wait_is_told_every_second(bench: Bench) -> None:
    bench.run(make_plan(make_arm(), wait_s=3))
    left = [e.seconds_left for e in bench.of(Waiting)]
    assert left == pytest.approx([3, 2, 1], abs=0.1)
    assert bench.of(Waiting)[0].total == 2


def test_progress_is_told_at_most_once_a_second(bench: Bench) -> None:
    bench.run(make_plan(make_arm()))
    progress = [e for e in bench.of(CellProgress) if e.cell.index == 0]
    assert 3 <= len(progress) <= CELL_S
    assert progress[0].tok_s is None
    assert all(e.tok_s is not None and 0 <= e.tok_s < 2 for e in progress[1:])
    assert [e.tokens for e in progress] == sorted(e.tokens for e in progress)
    assert len(bench.of(CellStarted)) == 2


def test_the_page_cache_is_emptied_before_every_cell_and_that_is_journaled(bench: Bench) -> None:
    bench.run(make_plan(make_arm()))
    assert bench.target.evicted == [*bench.model.files] * 2
    started = [e for e in read_journal(bench.dir) if e.event == "cell_started"]
    assert started[0].data["page_cache"] == {"before_bytes": 10, "after_bytes": 0}


def test_the_page_cache_is_left_alone_when_asked(bench: Bench) -> None:
    bench.options["evict_page_cache"] = False
    bench.run(make_plan(make_arm()))
    assert bench.target.evicted == []
    started = [e for e in read_journal(bench.dir) if e.event == "cell_started"]
    assert started[0].data["page_cache"] is None


# --- cells that fail ---


@pytest.mark.parametrize(
    ("behaviour", "status", "words"),
    [
        ({"result": {"status": "failed", "exit_code": 1}}, "failed", "failed"),
        ({"result": {"status": "killed", "status_detail": "time limit"}}, "killed", "time limit"),
        (
            {
                "result": {"status": "failed", "exit_code": 4},
                "stderr": "moe-engine: error: needs 9 bytes, allowed 8\n",
            },
            "refused",
            "needs 9 bytes, allowed 8",
        ),
        ({"launcher_exit": 2}, "failed", "the launcher wrote no result"),
    ],
)
def test_a_cell_that_fails_is_recorded_and_does_not_stop_the_others(
    bench: Bench, behaviour: dict[str, Any], status: str, words: str
) -> None:
    plan = make_plan(make_arm(), make_arm("other", **behaviour))
    records = bench.run(plan)
    assert [r.status for r in records] == ["ok", status, "ok"]
    assert words in str(records[1].status_detail)


def test_a_failed_opening_baseline_stops_the_campaign_and_is_kept(bench: Bench) -> None:
    plan = make_plan(make_arm(result={"status": "failed", "exit_code": 3}), make_arm("other"))
    with pytest.raises(DeviceError, match="opening baseline failed"):
        bench.run(plan)
    assert [r.status for r in load_records(bench.dir)] == ["failed"]
    assert bench.journal()[-1] == "campaign_stopped"


def test_a_failed_opening_baseline_is_run_again_on_resume(bench: Bench) -> None:
    plan = make_plan(make_arm(launcher_exit=1), make_arm("other"))
    for _ in range(2):
        with pytest.raises(DeviceError):
            bench.run(plan)
    cells = sorted(p.name for p in (bench.dir / "cells").iterdir())
    assert cells == ["00-baseline", "00-baseline.aborted-1"]


def test_a_sweep_goes_on_after_its_first_cell_failed(bench: Bench) -> None:
    bench.options["stop_when_baseline_fails"] = False
    arm = make_arm(result={"status": "failed", "exit_code": 4})
    assert [r.status for r in bench.run(make_plan(arm))] == ["refused", "refused"]


def test_settings_that_cannot_act_are_refused_before_anything_is_journaled(bench: Bench) -> None:
    arm = with_engine(make_arm("other"), moe_stream=False)
    with pytest.raises(UsageError, match="arm other: cache_mb"):
        bench.run(make_plan(make_arm(), arm))
    assert bench.journal() == []
    assert bench.target.started == []


def test_a_launcher_that_hangs_is_ended(bench: Bench) -> None:
    arm = replace(make_arm(), time_limit_s=1.0)
    bench.target.on_start = lambda _dir: setattr(bench.clock, "now", bench.clock.now + 100)
    real = ScriptedRunning.__init__

    def never(self: ScriptedRunning, clock: Clock, finish: Callable[[], int]) -> None:
        real(self, clock, finish)
        self._end = float("inf")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(DeviceError, match="no result"):
        patch.setattr(ScriptedRunning, "__init__", never)
        patch.setattr(ScriptedTarget, "tail", lambda *_: b"")
        bench.run(make_plan(arm))
    assert bench.target.running[0].terminated


# --- interruptions and resume ---


@pytest.mark.parametrize("how", ["flag", "keyboard"])
@pytest.mark.parametrize("when", [Waiting, CellStarted, CellProgress])
def test_an_interruption_keeps_what_is_finished_and_resume_does_the_rest(
    bench: Bench, how: str, when: type
) -> None:
    def interrupt(event: SessionEvent) -> None:
        if isinstance(event, when) and event.cell.index == 1:  # type: ignore[attr-defined]
            if how == "keyboard":
                raise KeyboardInterrupt
            bench.stop.request("SIGTERM")

    bench.on_event = interrupt
    with pytest.raises(Interrupted, match=r"1 of 4 cells finished.*resume=campaign-1") as caught:
        bench.run(PLAN)
    assert caught.value.exit_code == 130
    assert bench.journal()[-1] == "campaign_interrupted"
    assert read_journal(bench.dir)[-1].data["index"] == 1
    if when is not Waiting:
        assert bench.target.running[-1].terminated
    first = load_records(bench.dir)
    assert [r.index for r in first] == [0]

    bench.on_event, bench.stop = (lambda _event: None), StopFlag()
    before = bench.clock.now
    records = bench.run(PLAN)
    assert records[0] == first[0]
    assert [r.index for r in records] == [0, 1, 2, 3]
    resumed_at, name = bench.target.started[len(bench.target.started) - 3]
    assert name == "01-half"
    assert resumed_at - before == pytest.approx(30, abs=0.3)
    assert records[1].wait is not None
    assert records[1].wait.reason == "spacing after a resume"
    if when is not Waiting:
        assert (bench.dir / "cells" / "01-half.aborted-1").is_dir()


def test_a_first_cell_that_was_interrupted_waits_on_resume_too(bench: Bench) -> None:
    bench.on_event = lambda e: bench.stop.request("x") if isinstance(e, CellStarted) else None
    with pytest.raises(Interrupted, match="0 of 4"):
        bench.run(PLAN)
    bench.on_event, bench.stop, before = (lambda _e: None), StopFlag(), bench.clock.now
    bench.run(PLAN)
    assert bench.target.started[1][0] - before == pytest.approx(30, abs=0.3)


def test_resuming_a_finished_campaign_changes_nothing(bench: Bench) -> None:
    records = bench.run(PLAN)
    content = (bench.dir / "journal.jsonl").read_bytes()
    bench.events.clear()
    assert bench.run(PLAN) == records
    assert (bench.dir / "journal.jsonl").read_bytes() == content
    assert bench.events == []


def test_a_record_changed_on_disk_is_measured_again(bench: Bench) -> None:
    bench.run(PLAN)
    path = bench.dir / "cells" / "02-off" / "record.json"
    path.write_text(path.read_text().replace('"ok"', '"failed"'))
    records = bench.run(PLAN)
    assert [r.status for r in records] == ["ok"] * 4
    assert len(bench.target.started) == 5
    resumed = [e for e in read_journal(bench.dir) if e.event == "campaign_resumed"]
    assert "changed since it was written" in resumed[0].data["again"]["2"]
    assert len(list((bench.dir / "cells").glob("*/record.json"))) == 4


@pytest.mark.parametrize("name", ["telemetry.jsonl", "tokens.csv"])
def test_a_cell_whose_table_changed_on_disk_is_measured_again(name: str, bench: Bench) -> None:
    bench.run(PLAN)
    path = bench.dir / "cells" / "02-off" / name
    content = path.read_bytes()
    path.write_bytes(content[:-3])
    bench.run(PLAN)
    assert len(bench.target.started) == 5
    resumed = [e for e in read_journal(bench.dir) if e.event == "campaign_resumed"]
    assert f"{name}: changed since it was written" in resumed[0].data["again"]["2"]
    assert path.read_bytes() == content


def test_a_finished_campaign_that_measures_again_finishes_again(bench: Bench) -> None:
    bench.run(PLAN)
    (bench.dir / "cells" / "02-off" / "record.json").write_text("{")
    bench.on_event = lambda e: bench.stop.request("x") if isinstance(e, CellStarted) else None
    with pytest.raises(Interrupted):
        bench.run(PLAN)
    assert ended_as(read_journal(bench.dir)) == "campaign_interrupted"

    bench.stop = StopFlag()

    def die(event: SessionEvent) -> None:
        if isinstance(event, CellStarted):
            raise SystemExit  # as a kill: nothing is journaled any more

    bench.on_event = die
    with pytest.raises(SystemExit):
        bench.run(PLAN)
    assert ended_as(read_journal(bench.dir)) is None

    bench.on_event = lambda _e: None
    records = bench.run(PLAN)
    assert ended_as(read_journal(bench.dir)) == "campaign_finished"
    content = (bench.dir / "journal.jsonl").read_bytes()
    assert bench.run(PLAN) == records
    assert (bench.dir / "journal.jsonl").read_bytes() == content, "there was nothing to do"


def test_another_plan_or_model_is_not_a_resume(bench: Bench) -> None:
    bench.run(PLAN)
    with pytest.raises(UsageError, match="plan_sha256 differ"):
        bench.run(make_plan(make_arm("baseline", n_predict=5)))
    bench.model = replace(bench.model, sha256="another")
    with pytest.raises(UsageError, match="model_sha256 differ"):
        bench.run(PLAN)


def test_a_cell_waits_for_the_last_process_of_an_earlier_one(bench: Bench) -> None:
    bench.target.locked_until = bench.clock.now + 3
    bench.run(make_plan(make_arm()))
    assert bench.target.started[0][0] >= 1003


def test_a_process_that_does_not_end_is_told_to(bench: Bench) -> None:
    bench.target.locked_until = float("inf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            bench.target, "end_holders", lambda _lock: setattr(bench.target, "locked_until", 0)
        )
        bench.run(make_plan(make_arm()))
    assert bench.target.started[0][0] >= 1004


def test_a_process_that_cannot_be_ended_is_an_error(bench: Bench) -> None:
    bench.target.locked_until = float("inf")
    with pytest.raises(DeviceError, match="still running"):
        bench.run(make_plan(make_arm()))
    assert bench.target.started == []


# --- disks that fill up ---


def test_a_full_disk_stops_with_its_path_and_loses_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write

    def full(fd: int, data: bytes) -> int:
        if b'"cell": "half"' in bytes(data) and b'"argv"' in bytes(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DeviceError, match=r"01-half/record\.json: No space left on device"):
        bench.run(PLAN)
    monkeypatch.undo()
    assert [r.index for r in load_records(bench.dir)] == [0]
    assert [r.index for r in bench.run(PLAN)] == [0, 1, 2, 3]


def test_a_cell_that_fails_on_a_full_disk_is_not_counted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(make_arm(), make_arm("other", launcher_exit=1))
    bench.target.on_start = lambda d: (
        monkeypatch.setattr(Journal, "free_bytes", lambda _self: 1000)
        if d.name == "01-other"
        else None
    )
    with pytest.raises(DeviceError, match="no space left on device"):
        bench.run(plan)
    assert [r.index for r in load_records(bench.dir)] == [0]


def test_a_launcher_that_could_not_write_is_not_the_arms_failure(bench: Bench) -> None:
    plan = make_plan(make_arm(), make_arm("other", launcher_exit=5))
    with pytest.raises(DeviceError, match=r"cell other could not be kept: disk is full"):
        bench.run(plan)
    assert [r.index for r in load_records(bench.dir)] == [0]


def test_signals_set_the_flag_and_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    stop = StopFlag()
    with stop.on_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    assert stop.reason == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) is before


def test_nohup_stays_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = StopFlag()
        with stop.on_signals():
            os.kill(os.getpid(), signal.SIGHUP)
        assert stop.reason is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_cells_that_are_no_longer_wanted_are_passed_over_and_the_next_keeps_its_pause(
    bench: Bench,
) -> None:
    bench.options["wants"] = lambda cell, records: cell.name != "half" and len(records) < 2
    records = bench.run(PLAN)
    assert [r.cell for r in records] == ["baseline", "off"]
    starts = [at for at, _ in bench.target.started]
    assert starts[1] - starts[0] == pytest.approx(CELL_S + 30, abs=0.3)
    assert read_journal(bench.dir)[-1].event == "campaign_finished"
    assert read_journal(bench.dir)[-1].data["cells"] == 2
    content = (bench.dir / "journal.jsonl").read_bytes()
    assert bench.run(PLAN) == records
    assert (bench.dir / "journal.jsonl").read_bytes() == content


def test_what_is_wanted_is_asked_with_the_records_so_far_also_after_a_resume(
    bench: Bench,
) -> None:
    asked: list[tuple[str, list[int]]] = []

    def wants(cell: PlannedCell, records: Mapping[int, CellRecord]) -> bool:
        asked.append((cell.name, sorted(records)))
        return True

    bench.options["wants"] = wants
    bench.on_event = lambda e: (
        bench.stop.request("x") if isinstance(e, CellStarted) and e.cell.index == 2 else None
    )
    with pytest.raises(Interrupted):
        bench.run(PLAN)
    bench.on_event, bench.stop = (lambda _e: None), StopFlag()
    bench.run(PLAN)
    assert asked == [
        *[("baseline", []), ("half", [0]), ("off", [0, 1])],
        *[("off", [0, 1]), ("sentinel", [0, 1, 2])],
    ]
